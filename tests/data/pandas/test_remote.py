"""Readers on other file systems: a real server of the S3 protocol on loopback, and HDFS where `make test-yarn` runs."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from programs import run_program

pytest.importorskip("pandas")
pytest.importorskip("PIL")

PROGRAM = """
import sys
from io import BytesIO
import numpy as np
import pandas as pd
from PIL import Image
from orca import OrcaContext, XShards, init_orca_context, stop_orca_context
from orca_classic.data.image import read_images
from orca.data.pandas import read_csv, read_json, read_parquet
from orca.errors import DataError
from orca.storage.files import filesystem

remote = sys.argv[1]
fs, root = filesystem(remote)


def put(name, content):
    folder = f"{root}/{name}".rsplit("/", 1)[0]
    fs.makedirs(folder, exist_ok=True)
    fs.pipe_file(f"{root}/{name}", content)


def whole(shards):
    frame = pd.concat(shards.collect(), ignore_index=True)
    return frame.sort_values(frame.columns[0], ignore_index=True)


def refusal(read, *args):
    try:
        read(*args)
    except DataError as error:
        return str(error)
    raise AssertionError(f"{args} was read")


init_orca_context(cluster_mode="local", cores=2)

rows = pd.DataFrame({"n": np.arange(400_000), "word": np.resize(["a", "b, c", "d"], 400_000), "x": 0.25})
put("rows/a.csv", rows[:399_998].to_csv(index=False).encode())
put("rows/b.csv", rows[399_998:].to_csv(index=False).encode())
put("one.json", b'{"a": 1}\\n{"a": 2}\\n')
put("cut.csv", b"a,b\\n1,2\\n3\\n")
for backend in ("spark", "pandas"):
    OrcaContext.pandas_read_backend = backend
    for path in (f"{remote}/rows", f"{remote}/rows/*.csv", [f"{remote}/rows/a.csv", f"{remote}/rows/b.csv"]):
        shards = read_csv(path)
        pd.testing.assert_frame_equal(whole(shards), rows, check_dtype=False)
        assert shards.num_partitions() >= 2
    print("nothing,", backend, refusal(read_csv, f"{remote}/nothing.csv"))
assert whole(read_json(f"{remote}/one.json", lines=True)).a.tolist() == [1, 2]
assert whole(read_csv(f"{remote}/cut.csv")).a.tolist() == [1, 3]

OrcaContext.pandas_read_backend = "spark"
if remote.startswith("hdfs"):  # this Spark has no client for S3
    OrcaContext.get_spark_session().range(3).write.parquet(f"{remote}/table")
    assert whole(read_parquet(f"{remote}/table")).id.tolist() == [0, 1, 2]
else:
    print("parquet", refusal(read_parquet, f"{remote}/table"))

frame = pd.DataFrame({"n": np.arange(10), "word": list("abcdefghij")})
XShards.partition(frame, 3).save_parquet(f"{remote}/saved")
pd.testing.assert_frame_equal(XShards.load_parquet(f"{remote}/saved").concat_to_pdf(), frame)

for number in range(3):
    content = BytesIO()
    Image.new("L", (4, 3), number).save(content, "png")
    put(f"pets/{number}.png", content.getvalue())
pixels = [np.asarray(image) for image in read_images(f"{remote}/pets", image_type=".png").collect()]
assert [(array.shape, int(array[0, 0])) for array in pixels] == [((3, 4), 0), ((3, 4), 1), ((3, 4), 2)]
stop_orca_context()
print("all read")
"""


@pytest.fixture
def s3() -> Iterator[dict[str, str]]:
    """Yield the environment in which programs find an S3 server with an empty bucket named box."""
    pytest.importorskip("s3fs")
    server = pytest.importorskip("moto.server").ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        variables = {"AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_DEFAULT_REGION": "us-east-1"}
        yield {**variables, "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
    finally:
        server.stop()


@pytest.mark.full
def test_tables_and_images_of_s3_are_read(s3: dict[str, str]) -> None:
    make = "import fsspec; fsspec.filesystem('s3').mkdir('box')\n"
    output = run_program(make + PROGRAM, env=s3, args=["s3://box/folder"]).stdout
    assert "all read" in output
    for backend in ("spark", "pandas"):
        assert f"nothing, {backend} No such file or directory: 's3://box/folder/nothing.csv'" in output
    assert "parquet Spark cannot open s3a://box/folder/table" in output


@pytest.mark.yarn
def test_tables_and_images_of_hdfs_are_read() -> None:
    assert os.environ["HADOOP_CONF_DIR"]
    folder = f"hdfs:///user/ann/{uuid.uuid4().hex[:8]}"
    output = run_program(PROGRAM, env={"HADOOP_USER_NAME": "ann"}, args=[folder]).stdout
    assert "all read" in output
    assert f"nothing, spark No such file or directory: '{folder}/nothing.csv'" in output
    assert f"nothing, pandas No such file or directory: '{folder}/nothing.csv'" in output


ON_RAY = """
import sys
from pathlib import Path
import pandas as pd
from orca import init_orca_context, stop_orca_context
from orca.data.pandas import read_csv
from orca.errors import DataError

folder = Path(sys.argv[1])
(folder / "a.csv").write_text("n,w\\n1,7\\n")
(folder / "b.csv").write_text("n,w\\n0.5,x\\n")
init_orca_context(runtime="ray", cores=2)
shards = read_csv(str(folder))
print(type(shards).__name__, pd.concat(shards.collect(), ignore_index=True).to_dict("list"))
try:
    read_csv(str(folder), dtype={"w": int})
except DataError as error:
    print(error)
stop_orca_context()
"""


@pytest.mark.full
def test_files_are_read_on_ray_alone_with_the_types_of_pandas(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    output = run_program(ON_RAY, args=[str(tmp_path)]).stdout
    assert "RayXShards {'n': [1.0, 0.5], 'w': ['7', 'x']}" in output
    assert "b.csv cannot be read by pandas.read_csv" in output and "(column 'w')" in output
