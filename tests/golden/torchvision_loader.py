"""A convolutional network of torchvision on a DataLoader of torchvision's images and transforms."""

import torch
import torchvision
from torch.utils.data import DataLoader
from torchvision import transforms

from orca import Estimator
from orca.metrics import Accuracy


class Half(torchvision.datasets.FakeData):
    """Images of noise whose upper or lower half is dark; which one is the label."""

    def __getitem__(self, index):
        image, label = super().__getitem__(index)
        image = image.clone()
        image[:, :16, :] *= float(label)
        image[:, 16:, :] *= 1 - float(label)
        return image, label


transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.5,) * 3, (0.5,) * 3)])
train = DataLoader(Half(96, (3, 32, 32), 2, transform), batch_size=16, shuffle=True, num_workers=2)
test = DataLoader(Half(32, (3, 32, 32), 2, transform, random_offset=1000), batch_size=16)

torch.manual_seed(0)
model = torchvision.models.squeezenet1_1(num_classes=2)
est = Estimator.from_torch(
    model=model,
    optimizer=torch.optim.Adam(model.parameters(), lr=1e-3),
    loss=torch.nn.CrossEntropyLoss(),
    metrics=[Accuracy()],
    backend="local",
    workers_per_node=2,
)
for stats in est.fit(train, epochs=2, validation_data=test):
    print(stats)
print(est.evaluate(test))
print(est.predict(test).shape)
