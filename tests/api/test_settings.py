"""Settings are changed while the broker serves, with the checks of a settings file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from starlingmq.config.live_changes import EDITABLE, FIXED, changed, live_settings
from starlingmq.config.restart_settings import needs_restart
from starlingmq.config.section_types import ConfigError
from starlingmq.config.settings import Config

from .browser import BROWSER, Chromium
from .conftest import Ask, Serve

PATH = "/api/v1/settings"


async def test_a_change_is_checked_shown_and_applied(serve: Serve, ask: Ask) -> None:
    broker = await serve()
    body = {"path": "mqtt.max_qos", "value": "1", "only_check": True}
    (found,) = (await ask(broker, "PUT", PATH, json=body)).json()["nodes"].values()
    assert found == {"before": 2, "after": 1, "applied": False} and broker.config.mqtt.max_qos == 2
    told = (await ask(broker, "PUT", PATH, json={**body, "only_check": False})).json()
    assert next(iter(told["nodes"].values()))["applied"] and told["missing"] == []
    assert broker.config.mqtt.max_qos == 1
    listed = {one["path"]: one for one in (await ask(broker, "GET", PATH)).json()["settings"]}
    assert (listed["mqtt.max_qos"]["value"], listed["mqtt.max_qos"]["default"]) == (1, 2)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("mqtt.max_qos", "3", "mqtt.max_qos: "),
        ("mqtt.max_qos", "many", "mqtt.max_qos: "),
        ("limits.packet_size", "1 parsec", "limits.packet_size: "),
        ("auth.allow_anonymous", "true", "is not a setting that can be changed"),
        ("alarms.webhook", "http://example.org", "is not a setting that can be changed"),
        ("storage.durability", "process", "is not a setting that can be changed"),
        ("no.such", "1", "is not a setting that can be changed"),
        ("mqtt", "{}", "is not a setting that can be changed"),
    ],
)
async def test_a_wrong_change_is_refused_and_changes_nothing(
    serve: Serve, ask: Ask, path: str, value: str, said: str
) -> None:
    broker = await serve()
    before = broker.config
    refused = await ask(broker, "PUT", PATH, json={"path": path, "value": value})
    assert refused.status_code == 400 and said in refused.json()["error"], refused.json()
    assert broker.config is before


def test_every_listed_setting_takes_its_own_value_and_needs_no_restart() -> None:
    config = Config()
    listed = live_settings(config)
    assert len(listed) > 40 and {one.path.partition(".")[0] for one in listed} == set(EDITABLE)
    assert not {one.path for one in listed} & set(FIXED)
    for one in listed:
        assert changed(config, one.path, json.dumps(one.value)) == config, one.path


def test_a_change_that_contradicts_another_setting_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^mqtt\.max_qos: "):
        changed(Config(), "mqtt.max_qos", "-1")
    after = changed(Config(), "limits.topic_levels", "3")
    assert after.limits.topic_levels == 3 and needs_restart(Config(), after) == []


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="chromium is not installed")
async def test_an_operator_changes_a_setting_in_the_dashboard(serve: Serve, chromium: Chromium, pictures: Path) -> None:
    broker = await serve()
    async with chromium.page() as page:
        await page.look_like(1280, 800, dark=False)
        await page.go(broker.address("http") + "/#settings")
        edit = "document.querySelector('[aria-label=\"Edit mqtt.max_qos\"]')"
        await page.until(edit)
        await page.run(f"{edit}.click()")
        field, told = "document.querySelector('[aria-label=\"New value\"]')", "document.getElementById('setting-told')"
        press = "[...document.querySelectorAll('#view button')].find((one) => one.textContent === '{}').click()"
        await page.run(f"{field}.value = '7'; {press.format('Check')}")
        await page.until(f"{told}.className === 'bad'")
        assert (await page.run(f"{told}.textContent")).startswith("mqtt.max_qos: ")
        await page.run(f"{field}.value = '1'; {press.format('Check')}")
        await page.until(f"{told}.querySelector('ins')?.textContent === '1'")
        assert await page.run(f"{told}.querySelector('del').textContent") == "2" and broker.config.mqtt.max_qos == 2
        await page.screenshot(pictures / "settings.png")
        await page.run(press.format("Apply"))
        await page.until(f"{told}.textContent.endsWith('applied')")
        assert broker.config.mqtt.max_qos == 1
        assert not page.problems
