"""The examples run from start to finish, offline, with the published client, and every step says what it should."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from bench import stand_ins
from bench.system import Serving, System
from examples.__main__ import run
from examples.needs import NEEDS
from tests.clients.conftest import client_python

pytestmark = pytest.mark.timeout(600)

STAND_IN = "a stand-in: what it answers means nothing"
SCORE = r"-?\d+\.\d+"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stand-ins for the weights that no package has."""
    folder = tmp_path_factory.mktemp("models")
    stand_ins.write_published(folder, folder.parent)
    return folder


@pytest.fixture(scope="module")
def serving(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """The shipped catalog."""
    system = System(tmp_path_factory.mktemp("examples"))
    with system.serve({"SHOAL_MODELS": str(models), "SHOAL_DEVICE": "cpu", "SHOAL_OFFLINE": "1"}) as serving:
        yield serving


def lines_of(name: str, serving: Serving, models: Path) -> list[str]:
    done = run(name, client_python(NEEDS[name]), serving, models, capture=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def by_step(lines: list[str]) -> Mapping[int, list[str]]:
    """What stands under each numbered line; 0 is before the first."""
    steps: dict[int, list[str]] = {0: []}
    for line in filter(None, lines):
        number = re.match(r"(\d+)\. ", line)
        steps.setdefault(int(number[1]) if number else max(steps), []).append(line)
    return steps


def matching(pattern: str, lines: list[str]) -> list[str]:
    """What the pattern's group holds on each line that it fits from end to end."""
    return [found[1] for line in lines if (found := re.fullmatch(pattern, line))]


def test_the_invoice_is_found_ranked_and_read(serving: Serving, models: Path) -> None:
    lines = lines_of("invoice", serving, models)

    assert [line for line in lines if STAND_IN in line] == [
        f"  {model}  ({STAND_IN})" for model in ("cross-encoder/ms-marco-MiniLM-L-6-v2", "urchade/gliner_multi-v2.1")
    ]
    assert "nearest by vector:  chairs, paper, lease" in lines
    assert matching(rf"rank (\d): \w+ +{SCORE}", lines) == ["0", "1"]
    assert len(matching(r"(read from \w+: \d+ entities)", lines)) == 1
    assert any("`generate` comes with text generation" in line for line in lines)


@pytest.fixture(scope="module")
def claim(serving: Serving, models: Path) -> Mapping[int, list[str]]:
    return by_step(lines_of("claim", serving, models))


class TestClaim:
    def test_it_names_the_models_that_are_stand_ins(self, claim: Mapping[int, list[str]]) -> None:
        assert [line.split()[0] for line in claim[0] if STAND_IN in line] == [
            "fastino/gliner2-large-v1",
            "BAAI/bge-reranker-v2-m3",
            "IDEA-Research/grounding-dino-tiny",
        ]
        assert claim[0][1] == "  docling"

    def test_three_documents_become_markdown(self, claim: Mapping[int, list[str]]) -> None:
        pages = matching(r"(\S+: \d+ pages), [1-9]\d* characters of Markdown", claim[1])
        assert pages == ["proof_of_loss.png: 1 pages", "estimate.xlsx: 1 pages", "policy.pdf: 3 pages"]

    def test_every_field_is_found_or_said_to_be_missing(self, claim: Mapping[int, list[str]]) -> None:
        found = matching(rf"([a-z ]+): (?:not found|['\"].+['\"], {SCORE})", claim[2])
        assert found == ["insured name", "loss date", "policy number", "address"]

    def test_the_policys_sections_are_filtered_and_ranked(self, claim: Mapping[int, list[str]]) -> None:
        [kept] = matching(r"20 sections, by keywords: (.+)", claim[3])
        assert set(kept.split(", ")) == {"Section 3", "Section 5", "Section 6", "Section 7"}
        ranked = matching(rf"rank (\d: Section \d+) +{SCORE}", claim[3])
        assert [rank.split(": ")[0] for rank in ranked] == ["0", "1", "2", "3"]
        assert matching(r"passage: (Section \d+)\. .+…", claim[3]) == [ranked[0].split(": ")[1]]

    def test_damage_has_labels_scores_and_boxes(self, claim: Mapping[int, list[str]]) -> None:
        found = matching(rf"([a-z ]+): {SCORE} at \(-?\d+, -?\d+, -?\d+, -?\d+\)", claim[4])
        assert set(found) <= {"water stain", "warped floor board", "soaked carpet"}
        assert claim[4][-1] == f"photo.jpg: {len(found)} objects above 0.3"

    def test_what_generate_would_be_handed_is_whole(self, claim: Mapping[int, list[str]]) -> None:
        assert "`generate` comes with text generation" in claim[5][0]
        asked = "\n".join(claim[5])
        assert all(part in asked for part in ("policy number:", "| Total", "Policy: Section", '"json_schema"'))
