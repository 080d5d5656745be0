from __future__ import annotations

import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from orca.core import processor
from orca.estimators import Estimator

FLAGS = "flags\t\t: fpu vme avx512f {} amx_tile amx_int8\nbugs\t\t:\n"
# Executes an instruction that no processor has.
DIES = """
import ctypes, mmap
with open({tries!r}, "a") as tries:
    tries.write("tried\\n")
code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
code.write(bytes([0x0F, 0x0B, 0, 0]))
ctypes.CFUNCTYPE(None)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()
"""


@pytest.fixture
def cpuinfo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let this process and its cache begin anew on a processor that reports AMX."""
    file = tmp_path / "cpuinfo"
    file.write_text(FLAGS.format("amx_bf16"))
    monkeypatch.setattr(processor, "CPUINFO", file)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv(processor.VARIABLE, "")  # so that it is as before afterwards
    monkeypatch.delenv(processor.VARIABLE)
    return file


@pytest.fixture
def tries(cpuinfo: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let a child that tries AMX die of it; the file has a line for each try."""
    file = cpuinfo.with_name("tries")
    file.touch()
    monkeypatch.setattr(processor, "TRIAL", DIES.format(tries=str(file)))
    return file


def test_a_processor_reports_amx_by_its_flags(cpuinfo: Path, tries: Path) -> None:
    assert processor.reports_amx()
    cpuinfo.write_text("flags\t\t: fpu vme avx512f bf16\nmodel name\t: amx_bf16\n")
    assert not processor.reports_amx()
    cpuinfo.unlink()
    assert not processor.reports_amx()
    assert processor.protect_from_amx() == ""
    assert tries.read_text() == ""


def test_a_processor_on_which_a_matrix_product_works_is_left_alone(cpuinfo: Path) -> None:
    assert processor.amx() == "works"
    assert processor.protect_from_amx() == ""
    assert processor.VARIABLE not in os.environ


def test_a_trial_runs_no_file_of_the_working_directory(
    cpuinfo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    for name in ("resource", "torch", "numpy"):
        (tmp_path / f"{name}.py").write_text(f"open({str(run)!r}, 'w').close()")
    monkeypatch.chdir(tmp_path)
    assert processor.amx() in (processor.WORKS, processor.FAILS)
    assert not run.exists()


def test_a_processor_that_dies_is_tried_once_and_kept_from_amx(tries: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ThreadPoolExecutor(4) as pool:  # ranks that start together
        assert [future.result() for future in [pool.submit(processor.amx) for _ in range(4)]] == ["fails"] * 4
    assert "ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16 is set" in processor.protect_from_amx()
    assert os.environ["ONEDNN_MAX_CPU_ISA"] == "AVX512_CORE_FP16"
    assert processor.protect_from_amx() == ""  # once
    assert tries.read_text() == "tried\n"
    boot = tries.with_name("boot")
    boot.write_text("another\n")
    monkeypatch.setattr(processor, "BOOT", boot)
    assert processor.amx() == "fails"
    assert tries.read_text() == "tried\n" * 2


def test_a_users_own_value_wins(tries: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert processor.protect_from_amx() == ""
    assert os.environ["ONEDNN_MAX_CPU_ISA"] == "AVX2"
    assert tries.read_text() == ""


@pytest.mark.parametrize("content", ["", "works ", "WORKS", "works\nfails", "__import__('os').abort()", "\xff" * 9])
def test_a_verdict_is_one_of_two_words_or_none(tries: Path, content: str) -> None:
    assert processor.amx() == "fails"
    [file] = (tries.parent / "cache" / "orca" / "processor").iterdir()
    assert (file.read_text(), file.stat().st_mode & 0o777) == ("fails", 0o600)
    file.write_bytes(content.encode("latin-1"))
    assert processor.amx() == "fails"
    assert (file.read_text(), tries.read_text()) == ("fails", "tried\n" * 2)


def test_a_folder_that_others_can_write_is_not_believed(tries: Path) -> None:
    folder = tries.parent / "cache" / "orca" / "processor"
    assert processor.amx() == "fails"
    folder.chmod(0o777)
    for file in folder.iterdir():
        file.write_text("works")
    assert processor.amx() == "fails"


def test_a_trial_that_ends_otherwise_decides_nothing(tries: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for end in ("import no_such_module", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"):
        monkeypatch.setattr(processor, "TRIAL", end)
        assert processor.protect_from_amx() == ""
    monkeypatch.setattr(processor, "TRIAL", DIES.format(tries=str(tries)))
    assert processor.protect_from_amx() != ""


def writes_its_variable(config: dict[str, Any]) -> torch.nn.Module:
    Path(config["folder"], f"rank-{os.getpid()}").write_text(os.environ.get("ONEDNN_MAX_CPU_ISA", "none"))
    return torch.nn.Linear(2, 1)


def test_local_ranks_are_protected_and_the_log_says_so_once(
    tries: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ranks = tmp_path / "ranks"
    ranks.mkdir()
    est = Estimator.from_torch(
        model=writes_its_variable,
        optimizer=lambda model, config: torch.optim.SGD(model.parameters(), 0.1),
        loss=torch.nn.MSELoss(),
        config={"folder": str(ranks)},
        backend="local",
        workers_per_node=2,
    )
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            est.fit((np.ones((8, 2), np.float32), np.ones((8, 1), np.float32)), epochs=1, batch_size=4)
    values = [file.read_text() for file in ranks.iterdir() if file.name != f"rank-{os.getpid()}"]
    assert len(values) == 4 and set(values) == {"AVX512_CORE_FP16"}
    assert len([line for line in caplog.messages if "AMX" in line]) == 1
    assert tries.read_text() == "tried\n"


# Patches every Python process of a program before it runs anything else.
SITE = """
from pathlib import Path
from orca.core import processor
processor.CPUINFO = Path({cpuinfo!r})
processor.TRIAL = {trial!r}
"""
PROGRAM = """
import logging, os
from pathlib import Path
import numpy as np, torch
import orca.doctor
from orca import init_orca_context, stop_orca_context
from orca.estimators import Estimator

def model(config):
    Path({folder!r}, str(os.getpid())).write_text(os.environ.get("ONEDNN_MAX_CPU_ISA", "none"))
    return torch.nn.Linear(2, 1)

class Answers(torch.nn.Module):
    def forward(self, x):
        Path({folder!r}, "predict-" + str(os.getpid())).write_text(os.environ.get("ONEDNN_MAX_CPU_ISA", "none"))
        return x

if __name__ == "__main__":
    context = init_orca_context({context})
    try:
        est = Estimator.from_torch(
            model=model, optimizer=lambda model, config: torch.optim.SGD(model.parameters(), 0.1),
            loss=torch.nn.MSELoss(), backend={backend!r}, workers_per_node=2,
        )
        est.fit((np.ones((8, 2), np.float32), np.ones((8, 1), np.float32)), epochs=1, batch_size=4)
        answers = Estimator.from_torch(model=Answers(), backend={backend!r}, workers_per_node=2)
        answers.predict(np.ones((8, 2), np.float32))
        print(orca.doctor.examine(backend={backend!r}, workers_per_node=2))
        print("driver", os.getpid())
    finally:
        stop_orca_context()
"""


@pytest.mark.full
@pytest.mark.parametrize(
    ("backend", "context"), [("spark", 'cluster_mode="local", cores=2'), ("ray", 'runtime="ray", cores=2')]
)
@pytest.mark.parametrize("own", [None, "AVX2"])
def test_ranks_and_predictions_on_clusters_are_protected(
    run_program: Callable[..., Any], tries: Path, tmp_path: Path, backend: str, context: str, own: str | None
) -> None:
    site, folder = tmp_path / "site", tmp_path / "ranks"
    site.mkdir()
    folder.mkdir()
    code = SITE.format(cpuinfo=str(processor.CPUINFO), trial=processor.TRIAL)
    (site / "sitecustomize.py").write_text(code)
    path = os.pathsep.join([str(site), os.environ["PYTHONPATH"]])
    program = PROGRAM.format(folder=str(folder), backend=backend, context=context)
    said = run_program(program, env={"PYTHONPATH": path, "ONEDNN_MAX_CPU_ISA": own})
    driver = said.stdout.rsplit("driver ", 1)[1].strip()
    values = {file.name: file.read_text() for file in folder.iterdir() if file.name != driver}
    assert set(values.values()) == {own or "AVX512_CORE_FP16"}
    fits = [name for name in values if not name.startswith("predict-")]
    assert len(fits) >= 2 and len(fits) < len(values)
    # The doctor asks in any case.
    assert tries.read_text() == "tried\n"
    assert f"the ranks have ONEDNN_MAX_CPU_ISA={own or 'AVX512_CORE_FP16'}" in " ".join(said.stdout.split())
    assert said.stderr.count("reports AMX") == (own is None)
