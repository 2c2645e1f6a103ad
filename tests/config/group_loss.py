"""The Group Loss' configurations."""

from tests.config.cases import Facts

FACTS = Facts(
    files=["cub_group_loss", "cars_group_loss"],
    number=3,
    weights={"bn_inception"},
    without_effect=["cub_group_loss method.anchors=9"],
    photos=("omniglot_group_loss", ""),
    unused=lambda method: {"embedding"},
)
