"""Settings of stages as plain values: what comes back is what was given; what cannot be written, in words."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("pyspark")

from torch import nn  # noqa: E402
from torch.optim import lr_scheduler  # noqa: E402

from orca.errors import ArgumentError  # noqa: E402
from orca.storage.state import State  # noqa: E402
from orca.storage.states import load_state, save_state  # noqa: E402
from orca.triggers import EveryEpoch, MaxEpoch, MinLoss, SeveralIteration, TriggerAnd, TriggerOr  # noqa: E402
from orca_classic.bigdl import criterion as criterions  # noqa: E402
from orca_classic.bigdl.feature.image import ImageMatToTensor, ImageRandomCrop, ImageRandomPreprocessing, ImageResize  # noqa: E402
from orca_classic.bigdl.feature.preprocessing import ChainedPreprocessing, FeatureLabelPreprocessing, SeqToTensor  # noqa: E402
from orca_classic.bigdl.optimizer import TrainSummary, ValidationSummary  # noqa: E402
from orca_classic.bigdl.optimizers import SGD, Adam  # noqa: E402
from orca_classic.bigdl.optimizers.schedules import Plateau, Poly, SequentialSchedule, Warmup  # noqa: E402
from orca_classic.bigdl.validation import Loss, Top1Accuracy  # noqa: E402
from orca_classic.nnframes.settings import packed, unpacked  # noqa: E402
from orca_classic.nnframes.wrappers import TorchLoss, TorchOptim  # noqa: E402


def through_a_file(value: Any, folder: Path, weights: Any = (), others: Any = None) -> Any:
    """Return what is read of a setting that was written; only JSON and safetensors lie there."""
    save_state(State(payload={"models": [], "it": packed(value, "it", weights)}), str(folder / "it"), "torch")
    assert json.loads((folder / "it" / "state.json").read_text())
    return unpacked(load_state(str(folder / "it"), "torch").payload["it"], weights if others is None else others)


@pytest.mark.parametrize(
    "value",
    [
        ChainedPreprocessing(
            [ImageResize(8, 8), ImageRandomPreprocessing(ImageRandomCrop(4, 4, seed=3), 0.5), ImageMatToTensor()]
        ),
        FeatureLabelPreprocessing(SeqToTensor((2,)), SeqToTensor()),
        SGD(0.1, momentum=0.5, learningrate_schedule=SequentialSchedule(5).add(Warmup(0.1), 3).add(Poly(2, 9), 9)),
        Adam(0.1, learningrate_decay=0.5),
        SGD(0.1, learningrate_schedule=Plateau("Loss", patience=2)),
        TriggerOr(TriggerAnd(EveryEpoch(), MinLoss(0.1)), MaxEpoch(7)),
        {"clip_value": (-0.5, 0.5)},
        [SeveralIteration(3), None, ["mae", "accuracy"], 8],
        nn.functional.mse_loss,
        nn.MSELoss,
    ],
    ids=lambda value: type(value).__name__,
)
def test_settings_come_back_equal(value: Any, tmp_path: Path) -> None:
    assert through_a_file(value, tmp_path) == value


def test_summaries_and_metrics_come_back(tmp_path: Path) -> None:
    summary = through_a_file(ValidationSummary(str(tmp_path), "run"), tmp_path)
    assert type(summary) is ValidationSummary and summary.summaries.folder("validation").endswith("run/validation")
    assert type(through_a_file(TrainSummary(str(tmp_path), "run"), tmp_path)) is TrainSummary
    first, second = through_a_file([Top1Accuracy(), Loss(criterions.MSECriterion())], tmp_path)
    assert type(first) is Top1Accuracy and isinstance(second.criterion, criterions.MSECriterion)


OUTPUT = np.random.default_rng(0).random((4, 3)).astype(np.float32)


def several() -> Any:
    held = criterions.ParallelCriterion(repeat_target=True)
    return held.add(criterions.MSECriterion(), 0.3).add(criterions.AbsCriterion(), 0.7)


def padded() -> Any:
    held = criterions.MultiCriterion().add(criterions.ClassNLLCriterion()).add(criterions.CrossEntropyCriterion())
    assert callable(held.reduction)  # a fit has asked
    return held


@pytest.mark.parametrize(
    ("make", "output", "target"),
    [
        (lambda: criterions.ClassNLLCriterion(weights=np.array([1.0, 2.0, 0.5])), OUTPUT, np.array([1.0, 2, 3, 3])),
        (lambda: criterions.MSECriterion(), OUTPUT, OUTPUT * 2),
        (several, [OUTPUT, OUTPUT + 1], OUTPUT * 2),
        (padded, OUTPUT, np.array([1.0, 2, -1, 3])),
        (
            lambda: criterions.TimeDistributedCriterion(criterions.ClassNLLCriterion(), size_average=True),
            np.log(OUTPUT[:, None] / OUTPUT[:, None].sum(2, keepdims=True)),
            np.array([[1.0], [2], [3], [3]]),
        ),
        (lambda: TorchLoss.from_pytorch(nn.SmoothL1Loss(beta=0.3)), OUTPUT, OUTPUT * 2),
        (lambda: TorchLoss.from_pytorch(nn.functional.l1_loss), OUTPUT, OUTPUT * 2),
    ],
)
def test_criterions_come_back_with_their_loss(
    make: Callable[[], Any], output: Any, target: Any, tmp_path: Path
) -> None:
    before = make()
    after = through_a_file(before, tmp_path)
    assert type(after) is type(before) and after.one_based == before.one_based
    assert after.forward(output, target) == before.forward(output, target)
    kinds = [each.reduction for each in (before, after)]
    assert kinds[0] == kinds[1] or all(map(callable, kinds))


def trained(net: nn.Module, method: TorchOptim, steps: int = 4) -> nn.Module:
    optimizer = method.build(net.parameters())
    for step in range(steps):
        optimizer.zero_grad()
        net(torch.full((2, 3), 1.0 + step)).square().sum().backward()
        optimizer.step()
        optimizer.end_epoch(1.0)
    return net


@pytest.mark.parametrize(
    "schedule",
    [
        None,
        lambda optimizer: lr_scheduler.StepLR(optimizer, 2, 0.5),
        lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=9),
        lambda optimizer: lr_scheduler.CyclicLR(optimizer, 0.1, 0.4, 2, mode="exp_range", gamma=0.9),
        lambda optimizer: lr_scheduler.SequentialLR(
            optimizer,
            [lr_scheduler.ConstantLR(optimizer, 0.5, 2), lr_scheduler.ExponentialLR(optimizer, 0.7)],
            milestones=[2],
        ),
        lambda optimizer: lr_scheduler.ReduceLROnPlateau(optimizer, patience=0),
    ],
    ids=["none", "step", "cycle", "waves", "several", "plateau"],
)
def test_torch_optimizers_come_back_with_groups_state_and_scheduler(schedule: Any, tmp_path: Path) -> None:
    def make() -> tuple[nn.Module, TorchOptim]:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
        groups = [{"params": net[1].parameters(), "lr": 0.01}, {"params": net[0].parameters(), "betas": (0.5, 0.6)}]
        optimizer = torch.optim.Adam(groups, lr=0.05)
        net(torch.ones(1, 3)).sum().backward()
        optimizer.step()  # it has a state
        given = schedule(optimizer) if schedule else optimizer
        scores = isinstance(given, lr_scheduler.ReduceLROnPlateau)
        return net, TorchOptim.from_pytorch(given, "EpochDecayByScore" if scores else "EpochDecay")

    (net, method), (other, _) = make(), make()
    back = through_a_file(method, tmp_path, list(net.parameters()), list(other.parameters()))
    assert back.optimizer.param_groups[0]["params"][0] is other[1].weight
    for one, two in zip(trained(net, method).parameters(), trained(other, back).parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=0)


def own(output: Any, label: Any) -> Any:
    return output.sum()


own.__module__ = "__main__"


class OwnStep(SeqToTensor):
    """A step of the program itself."""


OwnStep.__module__ = "__main__"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (
            TorchLoss.from_pytorch(own),
            "criterion needs own, which is defined in the program itself .* module of its own",
        ),
        (TorchLoss.from_pytorch(lambda output, label: output), "criterion needs .*<lambda>, which is defined in the"),
        (OwnStep(), "criterion needs OwnStep, which is defined in the program itself"),
        (object(), "criterion is, or holds, a object, which cannot be saved without pickles"),
        (partial(print, "any call"), "criterion is, or holds, a partial, which cannot be saved without pickles"),
    ],
)
def test_code_of_the_program_itself_is_refused_in_words(value: Any, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        packed(value, "criterion")


@pytest.mark.parametrize(
    ("about", "words"),
    [
        (
            {"orca.kind": "object", "class": "subprocess:Popen", "attributes": {}},
            "Popen, which is no setting of a stage",
        ),
        ({"orca.kind": "object", "class": "spam:Eggs", "attributes": {}}, "spam.Eggs, which cannot be imported here"),
        (
            {"orca.kind": "optimizer", "class": "builtins:list", "defaults": {}, "groups": [], "states": []},
            "builtins:list, which is no torch.optim.Optimizer",
        ),
    ],
)
def test_files_cannot_make_other_things(about: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        unpacked(about)
