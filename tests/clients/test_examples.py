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


@pytest.mark.parametrize(
    ("name", "stored"),
    [
        ("retrieval_qdrant", r"(20) sections of 384 dimensions in Qdrant"),
        ("retrieval_chroma", r"(20) sections of 384 dimensions in Chroma"),
        ("retrieval_langchain", r"(\d\d) chunks of 384 dimensions in LangChain's store"),
    ],
)
def test_a_policy_is_asked_through_a_store_of_vectors(name: str, stored: str, serving: Serving, models: Path) -> None:
    lines = [line for line in lines_of(name, serving, models) if line]

    assert len(matching(stored, lines[:1])) == 1
    questions = [at for at, line in enumerate(lines) if line.endswith("?")]
    best = [matching(r"  (?:0\.\d{3})  (Section \d+)\. .+", lines[at + 1 : at + 4]) for at in questions]
    assert [len(found) for found in best] == [3, 3, 3]
    assert [found[0] for found in best] == ["Section 5", "Section 9", "Section 17"]


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
        pages = matching(r"(\S+: \d+ pages?), [1-9]\d* characters of Markdown", claim[1])
        assert pages == ["proof_of_loss.png: 1 page", "estimate.xlsx: 1 page", "policy.pdf: 3 pages"]

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


@pytest.fixture(scope="module")
def contract(serving: Serving, models: Path) -> Mapping[int, list[str]]:
    return by_step(lines_of("contract", serving, models))


CLAUSES = [f"clause {number}" for number in range(1, 8)]
RULE = r"R[1-6]"


class TestContract:
    def test_nine_models_take_part_and_seven_are_stand_ins(self, contract: Mapping[int, list[str]]) -> None:
        assert len(contract[0]) == 1 + 9
        assert [line.split()[0] for line in contract[0][1:] if STAND_IN not in line] == [
            "RapidAI/RapidOCR",
            "sentence-transformers/all-MiniLM-L6-v2",
        ]

    def test_the_page_is_read_into_clauses(self, contract: Mapping[int, list[str]]) -> None:
        assert contract[1][1:] == ["contract.png: 16 lines, 7 clauses"]

    def test_every_clause_is_judged_by_the_guard(self, contract: Mapping[int, list[str]]) -> None:
        verdicts = matching(rf"(clause \d: (?:SAFE|INJECTION)) {SCORE}", contract[2])
        assert [verdict.split(":")[0] for verdict in verdicts] == CLAUSES
        safe = sum(verdict.endswith("SAFE") for verdict in verdicts)
        assert contract[2][-1] == f"{safe} of 7 clauses may go to a language model"

    def test_entities_have_labels_places_and_scores(self, contract: Mapping[int, list[str]]) -> None:
        found = matching(rf"(\w+): ['\"].+['\"] at \d+-\d+, {SCORE}", contract[3])
        assert set(found) <= {"organization", "date", "amount"}
        [count, shown] = re.findall(r"\d+", contract[3][-1])
        assert int(count) >= int(shown) == len(found)

    def test_the_object_has_every_key_of_its_schema(self, contract: Mapping[int, list[str]]) -> None:
        found = matching(r"(\w+): (?:None|['\"].+['\"])", contract[4])
        assert found == ["customer", "supplier", "monthly_fee", "law"]

    def test_every_clause_has_a_kind(self, contract: Mapping[int, list[str]]) -> None:
        assert matching(rf"(clause \d): [a-z ]+ {SCORE}", contract[5]) == CLAUSES

    def test_real_vectors_find_our_own_wording(self, contract: Mapping[int, list[str]]) -> None:
        nearest = dict(
            line.split(": ", 1) for line in matching(rf"(clause \d: {SCORE} like our clause on .+)", contract[6])
        )
        assert list(nearest) == CLAUSES
        topics = [nearest[clause].split(" on ")[1] for clause in CLAUSES]
        assert topics[:5] == ["fees", "term", "liability", "confidentiality", "personal data"]
        assert topics[6] == "applicable law"

    def test_three_rules_are_retrieved_and_the_same_are_ranked(self, contract: Mapping[int, list[str]]) -> None:
        retrieved = matching(rf"(clause \d: {RULE}, {RULE}, {RULE})", contract[7])
        ranked = matching(rf"(clause \d: {RULE} {SCORE}, {RULE} {SCORE}, {RULE} {SCORE})", contract[8])
        assert [line.split(":")[0] for line in retrieved] == CLAUSES
        assert [sorted(re.findall(RULE, line)) for line in ranked] == [
            sorted(re.findall(RULE, line)) for line in retrieved
        ]

    def test_every_clause_is_checked_against_the_best_rule(self, contract: Mapping[int, list[str]]) -> None:
        checked = matching(rf"clause \d: (?:breaks|keeps) ({RULE}) \(.+ {SCORE}\)", contract[9])
        assert checked == [re.findall(RULE, line)[0] for line in contract[8][1:]]

    def test_the_summary_has_every_clause(self, contract: Mapping[int, list[str]]) -> None:
        assert matching(rf"(clause \d): .+; nearest to our .+; (?:BREAKS|keeps) {RULE}", contract[10]) == CLAUSES
        assert "`generate` comes with text generation" in contract[11][0]
        assert any("Summarise the review" in line for line in contract[11])
