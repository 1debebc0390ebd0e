"""What the Lab's controls show about catalogue settings."""

from __future__ import annotations

import json

from perfkit.experiment import CATALOGUE, setting
from perfkit.widgets.lab import _controls


def _reasons(names, **chosen):
    settings = [CATALOGUE[name] for name in names]
    values = {one.name: one.default for one in settings} | chosen
    return {
        one["name"]: {value["label"]: value["reason"] for value in one["values"]}
        for one in _controls(settings, values)
    }


def test_a_value_that_another_rules_out_is_grey_with_the_reason():
    free = _reasons(["fused", "foreach"])
    assert set(free["foreach"].values()) == {None}
    bound = _reasons(["fused", "foreach"], fused=True)
    assert "torch refuses both" in bound["foreach"]["on"]
    assert bound["foreach"]["off"] is None
    assert bound["fused"]["off"] is None  # the way out stays open


def test_every_setting_has_a_control_that_travels():
    chosen = {one.name: one.default for one in CATALOGUE.values()}
    controls = _controls(tuple(CATALOGUE.values()), chosen)
    assert json.loads(json.dumps(controls)) == controls
    for control in controls:
        one = CATALOGUE[control["name"]]
        assert control["help"] == one.about()
        default = control["values"][one.values.index(one.default)]
        assert default["reason"] is None


def test_a_setting_of_ones_own_says_what_its_maker_said():
    (control,) = _controls([setting("augment", [False, True], help="Flip.")], {"augment": False})
    assert control["help"] == "Flip."
