"""Tell shirts from shoes: train, evaluate, save, load and predict Fashion-MNIST, on a laptop or a cluster.

The first Estimator reads the images through functions that run on every worker. The second reads a Spark DataFrame; its
model is saved, loaded into a third, and predicts another DataFrame.

    python examples/fashion_mnist.py                                    # Spark in this process, 6,000 images
    python examples/fashion_mnist.py --backend ray                      # or local, bigdl
    python examples/fashion_mnist.py --data_dir ./data --epochs 10      # the whole set, as torchvision lays it out
    python examples/fashion_mnist.py --cluster_mode yarn-client --num_nodes 2 --data_dir hdfs:///data --output hdfs:///out
"""

import argparse
import gzip
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from orca import Estimator, OrcaContext, init_orca_context, stop_orca_context
from orca.data.file import enable_multi_fs_load_static, put_local_file_to_remote
from orca.metrics import Accuracy

HERE = Path(__file__).resolve().parent
PIXELS = 28 * 28


def make_model(config):
    channels = config.get("channels", 8)
    return nn.Sequential(
        nn.Unflatten(1, (1, 28, 28)),
        *(nn.Conv2d(1, channels, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(channels, 2 * channels, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Dropout(0.2), nn.Linear(2 * channels * 7 * 7, 10)),
    )


def make_optimizer(model, config):
    return torch.optim.Adam(model.parameters(), lr=config["lr"])


def make_loader(config, batch_size, data_dir, part):
    """Runs on every worker and gives all rows; Orca deals them out."""
    images, labels = read_part(data_dir, part)
    dataset = TensorDataset(torch.from_numpy(images), torch.from_numpy(labels))
    return DataLoader(dataset, batch_size=batch_size, shuffle=part == "train")


def main():
    args = parse_arguments()
    torch.manual_seed(0)
    start_context(args)

    # 1. Data from functions.
    train, test = (partial(make_loader, data_dir=args.data_dir, part=part) for part in ("train", "t10k"))
    est = make_estimator(args)
    for line in est.fit(train, epochs=args.epochs, batch_size=args.batch_size, validation_data=test):
        print(
            f"epoch {line['epoch']}: {line['num_samples']} images, loss {line['train_loss']:.3f}, "
            f"on {line['val_num_samples']} others {line['val_loss']:.3f}"
        )
    scores = est.evaluate(test, batch_size=args.batch_size)
    est.history.plot(f"{args.output}/loss.png")
    print(f"Loss curve: {args.output}/loss.png")

    # 2. Data from tables.
    train, test = make_table(args, "train"), make_table(args, "t10k")
    columns = {"feature_cols": ["image"], "label_cols": ["label"]}
    second = make_estimator(args)
    second.fit(train, epochs=args.epochs, batch_size=args.batch_size, **columns)
    path = second.save(f"{args.output}/model")
    third = make_estimator(args).load(path)
    predicted = third.predict(test, feature_cols=["image"], batch_size=256)
    print(f"Accuracy of the loaded model on a {type(test).__name__}: {accuracy_of(predicted, test):.4f}")

    print(f"Accuracy: {scores['Accuracy']:.4f}")
    stop_orca_context()


def start_context(args):
    if args.backend in ("ray", "torch_distributed"):
        init_orca_context(runtime="ray", cores=args.cores)
    elif args.backend != "local":
        init_orca_context(
            cluster_mode=args.cluster_mode,
            cores=args.cores,
            num_nodes=args.num_nodes,
            memory=args.memory,
            driver_memory=args.memory,
            ship_environment=not args.no_ship_environment,
        )


def make_estimator(args):
    return Estimator.from_torch(
        model=make_model,
        optimizer=make_optimizer,
        loss=nn.CrossEntropyLoss(),
        metrics=[Accuracy()],
        model_dir=args.output,
        backend=args.backend,
        config={"lr": args.lr},
        workers_per_node=args.workers_per_node,
    )


def make_table(args, part):
    """Return a part as a Spark DataFrame (by way of a Parquet file), or as arrays where there is no Spark."""
    images, labels = read_part(args.data_dir, part)
    if args.backend not in ("spark", "bigdl"):
        return {"image": images, "label": labels}
    path = f"{args.output}/{part}.parquet"
    table = pa.table({"image": pa.FixedSizeListArray.from_arrays(images.ravel(), PIXELS), "label": labels})
    with tempfile.TemporaryDirectory() as folder:
        pq.write_table(table, f"{folder}/table", row_group_size=1000)
        put_local_file_to_remote(f"{folder}/table", path, over_write=True)
    return OrcaContext.get_spark_session().read.parquet(path if "://" in path else f"file://{path}")


def accuracy_of(predicted, test):
    if isinstance(test, dict):
        return float((predicted.argmax(axis=1) == test["label"]).mean())
    rows = predicted.select("prediction", "label").collect()
    return float(np.mean([np.argmax(row.prediction) == row.label for row in rows]))


def read_part(data_dir, part):
    """Return the images of "train" or "t10k" as rows of numbers from 0 to 1, and their labels."""
    raw = f"{data_dir}/FashionMNIST/raw"
    images = read_bytes(f"{raw}/{part}-images-idx3-ubyte.gz")[16:].reshape(-1, PIXELS)
    labels = read_bytes(f"{raw}/{part}-labels-idx1-ubyte.gz")[8:]
    return images / np.float32(255), labels.astype(np.int64)


@enable_multi_fs_load_static  # hdfs:// and others too
def read_bytes(path):
    with gzip.open(path) as file:
        return np.frombuffer(file.read(), np.uint8)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cluster_mode", default="local", help="local, standalone, yarn-client, yarn-cluster, ...")
    parser.add_argument("--backend", default="spark", help="spark, bigdl, ray, torch_distributed or local")
    parser.add_argument("--data_dir", default=str(HERE / "data"), help="folder with FashionMNIST/raw")
    parser.add_argument("--output", default=str(HERE / "output"), help="where the model and the picture go")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.002)
    parser.add_argument("--workers_per_node", type=int, default=2)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--num_nodes", type=int, default=1)
    parser.add_argument("--memory", default="2g", help="memory of each node, and of the driver")
    parser.add_argument("--no_ship_environment", action="store_true", help="the nodes have this Python already")
    args = parser.parse_args()
    if "://" not in args.data_dir:
        args.data_dir = str(Path(args.data_dir).resolve())
    if "://" not in args.output:
        args.output = str(Path(args.output).resolve())
        Path(args.output).mkdir(parents=True, exist_ok=True)
    return args


if __name__ == "__main__":
    main()
