"""Train a small convolutional network on Fashion-MNIST, on a laptop or a cluster.

First from data creators (plain torchvision code that runs on every worker), then from a Spark DataFrame; the trained
model is saved, loaded and used to predict that DataFrame.

    python examples/fashion_mnist.py                                     # embedded Spark, the committed 6,000 images
    python examples/fashion_mnist.py --backend ray
    python examples/fashion_mnist.py --data_dir ./data --epochs 10       # the full set, in torchvision's layout
    python examples/fashion_mnist.py --cluster_mode yarn-client --num_nodes 2 --data_dir hdfs:///data --output hdfs:///out
    python examples/fashion_mnist.py --cluster_mode yarn-cluster --num_nodes 2 --data_dir hdfs:///data --output hdfs:///out
"""

import argparse
import gzip
import shutil
import tempfile
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
import torchvision
import torchvision.transforms as transforms

from orca import Estimator, OrcaContext, init_orca_context, stop_orca_context
from orca.data.file import get_remote_dir_to_local, put_local_file_to_remote
from orca.metrics import Accuracy

HERE = Path(__file__).resolve().parent


@contextmanager
def on_this_machine(data_dir):
    """Give the folder with the data set; one that lies elsewhere, as in hdfs://, is brought here for the moment."""
    if "://" not in data_dir:
        yield data_dir
        return
    with tempfile.TemporaryDirectory() as folder:
        get_remote_dir_to_local(data_dir, f"{folder}/data")
        unpack(Path(folder, "data"))
        yield f"{folder}/data"


def train_data_creator(config={}, batch_size=4, download=True, data_dir="./data"):
    transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.5,), (0.5,))])
    with on_this_machine(data_dir) as root:
        trainset = torchvision.datasets.FashionMNIST(root=root, download=download, train=True, transform=transform)
    trainloader = torch.utils.data.DataLoader(trainset, batch_size=batch_size, shuffle=True, num_workers=0)
    return trainloader


def validation_data_creator(config={}, batch_size=4, download=True, data_dir="./data"):
    transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.5,), (0.5,))])
    with on_this_machine(data_dir) as root:
        testset = torchvision.datasets.FashionMNIST(root=root, train=False, download=download, transform=transform)
    testloader = torch.utils.data.DataLoader(testset, batch_size=batch_size, shuffle=False, num_workers=0)
    return testloader


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5)
        self.pool = nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 4 * 4, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, x):
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        x = x.view(-1, 16 * 4 * 4)
        x = F.relu(self.fc1(x))
        x = F.relu(self.fc2(x))
        x = self.fc3(x)
        return x


def model_creator(config):
    model = Net()
    return model


def optimizer_creator(model, config):
    optimizer = optim.SGD(model.parameters(), lr=config.get("lr", 0.001), momentum=0.9)
    return optimizer


def main():
    args = parse_arguments()
    torch.manual_seed(0)
    data_dir = args.data_dir
    if "://" not in data_dir:
        data_dir = str(Path(data_dir).resolve())
        unpack(Path(data_dir))
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

    # 1. From data creators.
    train_creator = partial(train_data_creator, download=False, data_dir=data_dir)
    validation_creator = partial(validation_data_creator, download=False, data_dir=data_dir)
    orca_estimator = make_estimator(args)
    stats = orca_estimator.fit(
        train_creator, epochs=args.epochs, batch_size=args.batch_size, validation_data=validation_creator
    )
    print(f"Train stats: {stats}")
    val_stats = orca_estimator.evaluate(validation_creator, batch_size=args.batch_size)
    print(f"Validation stats: {val_stats}")

    # 2. From tabular data: a Spark DataFrame where there is a Spark, else plain arrays.
    train, test = table(data_dir, "train", args), table(data_dir, "t10k", args)
    columns = {"feature_cols": ["image"], "label_cols": ["label"]}
    second = make_estimator(args)
    more = second.fit(train, epochs=args.epochs, batch_size=args.batch_size, **columns)
    print(f"Train stats, from {type(train).__name__}: {more[-1]}")
    saved = second.save(f"{args.output}/model")
    third = make_estimator(args).load(saved)
    predictions = third.predict(test, feature_cols=["image"], batch_size=256)
    print(f"Accuracy of the loaded model on the {type(test).__name__}: {accuracy_of(predictions, test):.4f}")

    picture = f"{args.output}/loss.png"
    orca_estimator.history.plot(picture)
    print(f"Loss curve: {picture}")
    print(f"Accuracy: {val_stats['Accuracy']:.4f}")
    stop_orca_context()


def make_estimator(args):
    return Estimator.from_torch(
        model=model_creator,
        optimizer=optimizer_creator,
        loss=nn.CrossEntropyLoss(),
        metrics=[Accuracy()],
        model_dir=args.output,
        backend=args.backend,
        config={"lr": args.lr},
        workers_per_node=args.workers_per_node,
    )


def table(data_dir, split, args):
    """Return the images as a Spark DataFrame (through a Parquet file), or as arrays where there is no Spark."""
    with on_this_machine(data_dir) as root:
        raw = Path(root) / "FashionMNIST" / "raw"
        pixels = np.fromfile(raw / f"{split}-images-idx3-ubyte", np.uint8, offset=16)
        labels = np.fromfile(raw / f"{split}-labels-idx1-ubyte", np.uint8, offset=8).astype(np.int64)
    images = (pixels.astype(np.float32) / 255 - 0.5) / 0.5
    if args.backend not in ("spark", "bigdl"):
        return {"image": images.reshape(-1, 1, 28, 28), "label": labels}
    column = pa.array(images)
    for size in (28, 28, 1):
        column = pa.FixedSizeListArray.from_arrays(column, size)
    path = f"{args.output}/{split}.parquet"
    with tempfile.TemporaryDirectory() as folder:
        pq.write_table(pa.table({"image": column, "label": labels}), f"{folder}/table", row_group_size=1000)
        put_local_file_to_remote(f"{folder}/table", path, over_write=True)
    return OrcaContext.get_spark_session().read.parquet(path if "://" in path else f"file://{path}")


def accuracy_of(predictions, test):
    if isinstance(test, dict):
        return float((predictions.argmax(axis=1) == test["label"]).mean())
    rows = predictions.select("prediction", "label").collect()
    return float(np.mean([np.argmax(row.prediction) == row.label for row in rows]))


def unpack(data_dir):
    """Unzip the data set in place: torchvision reads the plain files."""
    for packed in (data_dir / "FashionMNIST" / "raw").glob("*-ubyte.gz"):
        if not packed.with_suffix("").exists():
            with gzip.open(packed) as source, open(packed.with_suffix(""), "wb") as target:
                shutil.copyfileobj(source, target)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cluster_mode", default="local", help="local, standalone, yarn-client, yarn-cluster, ...")
    parser.add_argument("--backend", default="spark", help="spark, bigdl, ray, torch_distributed or local")
    parser.add_argument("--data_dir", default=str(HERE / "data"), help="folder with FashionMNIST/raw")
    parser.add_argument("--output", default=str(HERE / "output"), help="where the model and the picture go")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--lr", type=float, default=0.002)
    parser.add_argument("--workers_per_node", type=int, default=2)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--num_nodes", type=int, default=1)
    parser.add_argument("--memory", default="2g", help="memory of each node, and of the driver")
    parser.add_argument("--no_ship_environment", action="store_true", help="the nodes have this Python already")
    args = parser.parse_args()
    if "://" not in args.output:
        args.output = str(Path(args.output).resolve())
        Path(args.output).mkdir(parents=True, exist_ok=True)
    return args


if __name__ == "__main__":
    main()
