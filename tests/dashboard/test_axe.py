"""Every page through axe-core: nothing that it calls serious or critical, light and dark, wide and narrow."""

from __future__ import annotations

import pytest

from tests.dashboard.conftest import Open
from tests.support import services
from tests.support.axe import axe_trouble, grave_findings
from tests.support.looks import OPEN_ALL
from tests.support.pages import Known, served

pytestmark = pytest.mark.slow  # starts a browser and a service


@pytest.fixture
def axe() -> None:
    services.require(axe_trouble())


@pytest.mark.usefixtures("axe")
@pytest.mark.parametrize("known", [pytest.param(page, id=page.name) for page in served()])
def test_nothing_grave_is_found(open_page: Open, known: Known) -> None:
    # the script is put into the page, which its policy would refuse; test_browser holds the policy
    page = open_page(known.path, signed_in=known.name != "sign-in", bypass_csp=True).page
    page.evaluate(OPEN_ALL)
    assert grave_findings(page) == []
    page.emulate_media(color_scheme="dark")
    page.set_viewport_size({"width": 360, "height": 900})
    assert grave_findings(page) == []


@pytest.mark.usefixtures("axe")
def test_a_grave_finding_would_be_seen(open_page: Open) -> None:
    page = open_page("/jobs", bypass_csp=True).page
    page.evaluate("document.querySelector('label[for=f-search]').remove()")
    assert [one["id"] for one in grave_findings(page)] == ["label"]
