"""The Group Loss' configurations, with the values of the authors' code."""

from tests.config.cases import Facts

FACTS = Facts(
    files=["cub_group_loss", "cars_group_loss"],
    number=3,
    weights={"bn_inception"},
    settings={
        "train.groups.classifier.learning_rate data.batch_size method.anchors method.temperature": {
            "cub_group_loss": (0.0001563663718906821, 54, 2, 24.0),
            "cars_group_loss": (0.0002, 35, 3, 79.0),
        },
    },
    without_effect=["cub_group_loss method.anchors=9"],
    unused=lambda method: {"embedding"},
    reloaded=(30, 50),
)
