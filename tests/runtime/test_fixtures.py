"""Every fixture fails for the rule whose folder it is in, and its fixed copy trains: under simulated CUDA."""

from __future__ import annotations

from pathlib import Path

import pytest

from amplint.runtime.process import Limits
from amplint.runtime.verify import Plan, Verifier

FIXTURES = Path(__file__).parents[2] / "fixtures"
ALSO = {"AMP304": {"AMP101"}}  # what an optimizer's eps cannot mend has to come from somewhere


@pytest.mark.parametrize("folder", sorted(FIXTURES.glob("AMP*")), ids=lambda folder: folder.name)
def test_fixture(folder: Path) -> None:
    plan = Plan(device="simulated", limits=Limits(seconds=300.0, threads=1), trace=False)
    unsafe, safe = Verifier(plan).verify([folder / "unsafe.py", folder / "safe.py"])
    assert set(unsafe.codes) == {folder.name} | ALSO.get(folder.name, set())
    assert unsafe.problem == ""
    assert safe.codes == ()
    assert safe.problem == ""
    assert safe.before is not None
    assert safe.before.steps >= 100


def test_there_are_fixtures() -> None:
    assert len(list(FIXTURES.glob("AMP1*"))) == 12
    assert len(list(FIXTURES.glob("AMP3*"))) == 10
