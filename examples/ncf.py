"""Recommend films: clean ratings in CSV files with XShards, train a two-tower model on them, predict with it.

The ratings are made here, in the manner of MovieLens: people and films have tastes that the model must find. Some lines
are broken, as in real files.

    python examples/ncf.py
    python examples/ncf.py --ratings 200000 --epochs 10 --cores 4
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import nn

from orca import Estimator, init_orca_context, stop_orca_context
from orca.data.pandas import read_csv
from orca.data.transformer import MinMaxScaler, StringIndexer
from orca.metrics import AUC, Accuracy

GENRES = ["comedy", "crime", "drama", "family", "horror"]
FEATURES = ["user", "film", "genre_id", "age_scaled"]


def write_ratings(folder, ratings, users=300, films=200, files=8):
    """Write ratings to CSV files: a rating is high where the tastes of user and film point the same way."""
    random = np.random.default_rng(0)
    user_taste, film_taste = random.normal(size=(users, 4)), random.normal(size=(films, 4))
    user, film = random.integers(users, size=ratings), random.integers(films, size=ratings)
    liking = (user_taste[user] * film_taste[film]).sum(1)
    rating = np.clip(np.round(3.5 + liking * 0.8 + random.normal(0, 0.3, ratings)), 1, 5)
    genre, age = random.integers(len(GENRES), size=films), random.integers(15, 80, users)
    table = pd.DataFrame(
        {
            "user": user,
            "film": film,
            "genre": np.array(GENRES)[genre[film]],
            "age": np.where(random.random(ratings) < 0.02, np.nan, age[user]),
            "rating": np.where(random.random(ratings) < 0.02, 99, rating),  # 99: a slip of the keyboard
        }
    )
    for number in range(files):
        table[number::files].to_csv(Path(folder) / f"ratings-{number}.csv", index=False)


def clean(frame):
    """Runs on a worker, with a shard: leave impossible ratings out, fill missing ages, say what is liked."""
    frame = frame[frame.rating.between(1, 5)]
    return frame.assign(
        age=frame.age.fillna(40.0), liked=(frame.rating >= 4).astype("float32"), drawn=np.arange(len(frame)) % 5
    )


def split(shards):
    """Return four fifths of the rows to train on, and the rest to test with."""
    return [
        shards.transform_shard(lambda frame, test=test: frame[(frame.drawn == 0) == test].reset_index(drop=True))
        for test in (False, True)
    ]


class TwoTowers(nn.Module):
    """Neural collaborative filtering: products of what is known of user and film, and a network over both."""

    def __init__(self, users, films, genres, width=8):
        super().__init__()
        self.user, self.film = nn.Embedding(users, 2 * width), nn.Embedding(films, 2 * width)
        self.genre = nn.Embedding(genres, 4)
        self.network = nn.Sequential(nn.Linear(2 * width + 5, 16), nn.ReLU(), nn.Linear(16, width), nn.ReLU())
        self.answer = nn.Linear(2 * width, 1)

    def forward(self, user, film, genre, age):
        user_product, user_deep = self.user(user).chunk(2, dim=1)
        film_product, film_deep = self.film(film).chunk(2, dim=1)
        deep = torch.cat([user_deep, film_deep, self.genre(genre), age.float().unsqueeze(1)], dim=1)
        both = torch.cat([user_product * film_product, self.network(deep)], dim=1)
        return torch.sigmoid(self.answer(both)).squeeze(1)


def make_model(config):
    return TwoTowers(**config["sizes"])


def make_optimizer(model, config):
    return torch.optim.Adam(model.parameters(), lr=config["lr"])


def main():
    args = parse_arguments()
    torch.manual_seed(0)
    init_orca_context(cluster_mode="local", cores=args.cores)
    with tempfile.TemporaryDirectory() as folder:
        write_ratings(folder, args.ratings)
        recommend(folder, args.epochs)
    stop_orca_context()


def recommend(folder, epochs):
    shards = read_csv(f"{folder}/*.csv", dtype={"age": "float64"}).transform_shard(clean)
    genres = StringIndexer(inputCol="genre")
    shards = genres.fit_transform(shards.transform_shard(lambda frame: frame.assign(genre_name=frame.genre)))
    shards = shards.transform_shard(lambda frame: frame.rename(columns={"genre": "genre_id"}))
    shards = MinMaxScaler(inputCol="age", outputCol="age_scaled").fit_transform(shards)
    train, test = split(shards)

    est = Estimator.from_torch(
        model=make_model,
        optimizer=make_optimizer,
        loss=nn.BCELoss(),
        metrics=[Accuracy(), AUC()],
        config={"lr": 0.01, "sizes": {"users": 300, "films": 200, "genres": len(GENRES) + 1}},
        backend="spark",
    )
    for line in est.fit(train, epochs, batch_size=256, feature_cols=FEATURES, label_cols=["liked"]):
        print(f"epoch {line['epoch']}: loss {line['train_loss']:.3f}")
    stats = est.evaluate(test, batch_size=256, feature_cols=FEATURES, label_cols=["liked"])
    print(
        f"{stats['num_samples']} ratings that were kept back: accuracy {stats['Accuracy']:.3f}, AUC {stats['AUC']:.3f}"
    )

    predicted = est.predict(test, feature_cols=FEATURES).first()
    print(predicted[["user", "film", "genre_name", "rating", "prediction"]].head().to_string(index=False))
    est.shutdown()


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ratings", type=int, default=40_000)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--cores", type=int, default=2)
    return parser.parse_args()


if __name__ == "__main__":
    main()
