"""The admin in a real browser: it logs in, sees a model appear without a reload, and turns one off."""

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from django.contrib.auth.models import User
from playwright.sync_api import Browser, ConsoleMessage, Page, ViewportSize, expect, sync_playwright
from pytest_django.live_server_helper import LiveServer

from catalog.models import RegisteredModel
from catalog.snapshot import Model, Snapshot
from protocol import names
from tests.admin.conftest import Beat, registered, resident
from tests.admin.test_dead_letters import MODEL, SECRET, bury
from tests.admin.test_tasks import accept

PASSWORD = "correct horse battery"
MINILM = "sentence-transformers/all-MiniLM-L6-v2"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    binary = shutil.which("chromium") or shutil.which("chromium-browser")
    if binary is None:
        pytest.skip("no chromium is on the PATH")
    # The driver keeps an event loop in this thread, where Django would otherwise refuse the tests their queries.
    with pytest.MonkeyPatch.context() as environment, sync_playwright() as playwright:
        environment.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        chromium = playwright.chromium.launch(executable_path=binary, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def page(browser: Browser, live_server: LiveServer) -> Iterator[Page]:
    """A logged-in page; a script error on any page it visits fails the test."""
    User.objects.create_superuser("ada", password=PASSWORD)
    errors: list[str] = []
    context = browser.new_context(base_url=live_server.url, viewport={"width": 1440, "height": 1000})
    tab = context.new_page()
    tab.on("pageerror", lambda error: errors.append(str(error)))
    tab.on("console", lambda message: errors.append(message.text) if _is_error(message) else None)
    tab.goto("/admin/")
    tab.fill("#id_username", "ada")
    tab.fill("#id_password", PASSWORD)
    tab.press("#id_password", "Enter")
    expect(tab.locator("#nav-sidebar-apps a[href='/admin/fleet/']")).to_be_visible()
    yield tab
    context.close()
    assert errors == []


def _is_error(message: ConsoleMessage) -> bool:
    return message.type == "error"


def photograph(page: Page, name: str) -> None:
    """Keeps pictures of the page in both themes where SHOAL_TEST_PICTURES says, for a person to look at."""
    folder = os.environ.get("SHOAL_TEST_PICTURES")
    if folder is None:
        return
    for theme in ("light", "dark"):
        page.evaluate("theme => document.documentElement.classList.toggle('dark', theme === 'dark')", theme)
        page.wait_for_timeout(300)
        page.screenshot(path=Path(folder) / f"{name}-{theme}.png", full_page=True)


def test_a_model_appears_on_the_fleet_page_without_a_reload(page: Page, beat: Beat) -> None:
    beat("gpu-1")
    page.goto("/admin/fleet/")
    expect(page.get_by_text("No model is on this device")).to_be_visible()
    page.evaluate("window.notReloaded = true")

    beat("gpu-1", models=[resident(MINILM, state="loading", progress=0.4)])
    expect(page.locator(f'[data-model="{MINILM}"] [data-state="loading"]')).to_be_visible()
    beat("gpu-1", models=[resident(MINILM)])
    expect(page.locator(f'[data-model="{MINILM}"] [data-state="loaded"]')).to_be_visible()

    assert page.evaluate("window.notReloaded")
    photograph(page, "fleet")


def test_the_rate_is_counted_from_what_the_page_saw(page: Page, beat: Beat) -> None:
    beat(counters={"items": 100})
    page.goto("/admin/fleet/")

    beat(counters={"items": 160})

    expect(page.locator("[data-per-minute]")).to_have_text(re.compile(r"[1-9]\d* per minute"))


def test_a_model_is_turned_off_in_the_list(page: Page, beat: Beat) -> None:
    registered(MINILM)
    beat(models=[resident(MINILM)])
    page.goto("/admin/catalog/registeredmodel/")
    photograph(page, "models")
    page.locator("tr", has_text=MINILM).locator("input.action-select").check()

    page.locator("select[name=action]").select_option(value="disable")
    page.get_by_role("button", name="Run").click()

    expect(page.get_by_text("1 model disabled.")).to_be_visible()
    assert not RegisteredModel.objects.get().enabled


def test_a_model_is_turned_off_on_its_page(page: Page, beat: Beat) -> None:
    row = registered(MINILM)
    page.goto(f"/admin/catalog/registeredmodel/{row.pk}/change/")
    photograph(page, "model")

    page.locator("#id_enabled").uncheck()
    page.get_by_role("button", name="Save", exact=True).click()

    expect(page.get_by_text("was changed successfully")).to_be_visible()
    assert not RegisteredModel.objects.get().enabled


def test_a_new_key_is_shown_once(page: Page, beat: Beat) -> None:
    page.goto("/admin/catalog/apikey/add/")
    photograph(page, "key-form")
    page.fill("#id_name", "search service")
    page.get_by_role("button", name="Save", exact=True).click()

    expect(page.locator("[data-secret]")).to_contain_text("sk-shoal-")
    photograph(page, "key")


def test_the_overview_keeps_itself_fresh(page: Page, beat: Beat) -> None:
    beat()
    page.goto("/admin/")
    tile = page.locator(".console-tiles > div", has_text="Models loaded")
    expect(tile).to_contain_text("0")

    beat(models=[resident(MINILM)])

    expect(tile).to_contain_text("1")
    photograph(page, "overview")


DESKTOP: ViewportSize = {"width": 1440, "height": 1000}
PHONE: ViewportSize = {"width": 390, "height": 844}


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_a_busy_fleet_fits_the_screen(page: Page, beat: Beat, state: "redis.Redis", size: ViewportSize) -> None:
    """Whatever is wrong is told on the page, and a phone scrolls no page sideways, only the tables."""
    page.set_viewport_size(size)
    beat(
        "gpu-1",
        device="cuda:0",
        models=[
            resident(MINILM, pinned=True, waiting=17, waiting_cost=4321, ceiling=8192),
            resident("org/other", idle_s=70.0),
            resident("org/broken", state="failed", error={"message": "no such file"}, retry_in_s=95.0),
        ],
        leaving_order=["org/other"],
        thrashing=["org/other", "org/third"],
        counters={"items": 345, "load_failures": 3, "engine_restarts": 2},
    )
    bury(state, "letter-1")
    page.goto("/admin/fleet/")

    for words in ("push each other off", "not tried again for", "held to a cost of", "first to leave", "1 dead letter"):
        expect(page.get_by_text(words)).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    photograph(page, f"fleet-busy-{size['width']}")


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_a_dead_letter_is_looked_into_sent_again_and_another_dropped(
    page: Page, beat: Beat, state: "redis.Redis", size: ViewportSize
) -> None:
    page.set_viewport_size(size)
    state.set(names.CATALOG, Snapshot(1, (Model(MODEL),)).to_json())
    for number in range(3):
        bury(state, f"letter-{number}")
    page.goto("/admin/dead-letters/")
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    photograph(page, f"dead-letters-{size['width']}")
    page.get_by_role("link", name="letter-0").click()
    expect(page.get_by_text(SECRET)).to_have_count(0)
    page.get_by_role("link", name="Show what the caller sent").click()
    expect(page.get_by_text(SECRET)).to_be_visible()
    photograph(page, f"dead-letter-{size['width']}")
    page.get_by_role("button", name="Send it again").click()
    expect(page.get_by_text("1 dead letter sent again")).to_be_visible()
    page.get_by_label("Choose letter-1").check()
    page.get_by_role("button", name="Drop the chosen").click()
    expect(page.get_by_text("1 dead letter dropped")).to_be_visible()
    assert state.zrange(names.DEAD, 0, -1) == [b"letter-2"]


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_a_task_is_found_by_its_state_and_cancelled(
    page: Page, beat: Beat, state: "redis.Redis", size: ViewportSize
) -> None:
    page.set_viewport_size(size)
    accept(state, "task-waiting")
    accept(state, "task-running", state="running")
    page.goto("/admin/tasks/")
    photograph(page, f"tasks-{size['width']}")
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    page.get_by_role("link", name="queued").click()
    expect(page.locator("[data-task]")).to_have_count(1)

    page.get_by_role("button", name="Cancel").click()

    expect(page.get_by_text("1 task cancelled.")).to_be_visible()
    expect(page.locator('[data-task="task-waiting"] [data-state="cancelled"]')).to_be_visible()
