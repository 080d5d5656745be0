"""The MXNet Estimator: its arguments, what its verbs return, and the numpy that MXNet needs."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from classic.mxnet.truth import ROWS, X, Y, cross_entropy, network
from orca.callbacks import EarlyStopping, LearningRateMonitor
from orca.errors import ArgumentError
from orca_classic import Estimator
from orca_classic.mxnet import create_config
from programs import run_program

needed = pytest.mark.skipif(find_spec("mxnet") is None, reason="MXNet is not installed")


def made(**options: Any) -> Any:
    given = {"config": create_config(log_interval=0), "model_creator": network, "loss_creator": cross_entropy}
    return Estimator.from_mxnet(**given | {"backend": "local"} | options)


def test_config_has_the_entries_that_were_given() -> None:
    assert create_config() == {
        "optimizer": "sgd",
        "optimizer_params": {"learning_rate": 0.01},
        "log_interval": 10,
        "seed": None,
    }
    config = create_config("adam", {"learning_rate": 1.0}, 2, 5, {"folder": "f"})
    assert (config["optimizer_params"], config["seed"], config["folder"]) == ({"learning_rate": 1.0}, 5, "f")


@needed
def test_losses_are_shown_at_the_interval_of_the_config(capfd: pytest.CaptureFixture[str]) -> None:
    made(config=create_config(log_interval=2), num_workers=2).fit((X, Y), 1, 16)
    shown = "".join(capfd.readouterr())
    assert "epoch 1, step 2: loss " in shown and "epoch 1, step 1: loss" not in shown


@needed
def test_verbs_answer_in_the_kind_of_the_data(tmp_path: Path) -> None:
    import mxnet as mx
    import pandas as pd

    est = made(
        num_workers=2,
        num_servers=2,
        runner_cores=1,
        config=create_config("sgd", {"learning_rate": 0.1, "lr_scheduler": mx.lr_scheduler.FactorScheduler(1, 0.5)}),
        validation_metrics_creator=lambda config: [mx.metric.Accuracy(), "ce"],
        eval_metrics_creator=lambda config: mx.metric.TopKAccuracy(2),
    )
    assert est.num_workers == 2
    lines = est.fit((X, Y), 2, 16, (X, Y), callbacks=[EarlyStopping(), LearningRateMonitor("step")], shuffle=False)
    assert [line["num_samples"] for line in lines] == [ROWS] * 2 and lines[0]["epoch_time"] > 0
    assert np.allclose(lines[0]["lr"], [0.1, 0.05, 0.025, 0.0125])
    scores = est.evaluate((X, Y))
    assert scores["num_samples"] == ROWS and scores["accuracy"] == lines[1]["val_accuracy"]
    logits = est.predict(X)
    chances = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    assert scores["val_loss"] == pytest.approx(-np.log(chances[np.arange(ROWS), Y]).mean(), rel=1e-5)
    frame = pd.DataFrame({"features": list(X), "label": Y})
    answered = est.predict(frame, feature_cols="features")
    assert np.allclose(np.stack(answered["prediction"]), logits, atol=1e-6)
    block = est.get_model()
    assert np.allclose(block(mx.nd.array(X)).asnumpy(), logits, atol=1e-6)
    again = made(config=est.config, num_workers=1).load(est.save(str(tmp_path / "state")))
    assert np.allclose(again.predict(X), logits, atol=1e-6)
    weights = made(num_workers=1)
    weights.load_state_dict(est.get_state_dict()["models"][0])
    assert np.allclose(weights.predict(X), logits, atol=1e-6)
    est.shutdown()


@needed
def test_explain_takes_the_creators_that_fit_takes() -> None:
    def creator(config: dict[str, Any], kv: Any) -> Any:
        raise AssertionError("nothing is read to explain")

    lines = made(workers_per_node=2).explain(creator, batch_size=16, look_around=False).outlook
    assert "rows are known after the first epoch" in lines["data"] and lines["ranks"].startswith("2 ")


@needed
def test_a_model_answers_before_it_was_trained() -> None:
    est = made(num_workers=2)
    assert np.allclose(est.predict(X), made(num_workers=1).predict(X), atol=1e-6)
    before = est.evaluate((X, Y))["val_loss"]
    (line,) = est.fit((X, Y), batch_size=ROWS)
    assert line["train_loss"] == pytest.approx(before, rel=1e-5)


@needed
@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"config": "adam"}, "config must be a dict, as create_config returns; got str"),
        ({"model_creator": None}, r"model_creator must be a function \(config\), called on each worker; got NoneType"),
        ({"num_workers": 0}, "num_workers must be a positive whole number; got 0"),
        ({"backend": "bigdl"}, "backend must be 'spark', 'ray' or 'local' for an MXNet model; got 'bigdl'"),
        ({"config": {"seed": -1}}, "seed must be a whole number, 0 or more; got -1"),
    ],
)
def test_wrong_arguments_are_refused_in_words(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ArgumentError, match=match):
        made(**options)


@needed
def test_a_block_in_place_of_its_creator_is_refused_in_words() -> None:
    with pytest.raises(ArgumentError, match=r"model_creator must be a function .* got HybridSequential\. Write"):
        made(model_creator=network({}))
    with pytest.raises(ArgumentError, match="train_resize_batch_num must be a positive"):
        made().fit((X, Y), train_resize_batch_num=0)


@needed
@pytest.mark.slow
def test_mxnet_is_imported_after_orca_alone_with_numpy_as_it_is() -> None:
    run_program("""
        import sys
        import numpy as np
        assert not hasattr(np, "PZERO") or np.lib.NumpyVersion(np.__version__) < "2.0.0"
        import zoo.orca.learn.mxnet
        assert "mxnet" not in sys.modules and "numpy" in sys.modules
        import mxnet as mx
        assert mx.nd.ones(3).sum().asscalar() == 3
    """)


def test_a_missing_mxnet_says_what_to_install() -> None:
    run_program("""
        import sys
        sys.modules["mxnet"] = None
        from orca_classic import Estimator
        from orca.errors import MissingDependency
        try:
            Estimator.from_mxnet(model_creator=len, config={"optimizer": "sgd"}, loss_creator=len)
        except MissingDependency as error:
            assert "pip install --no-deps mxnet==1.9.1" in str(error), error
        else:
            raise AssertionError
    """)
