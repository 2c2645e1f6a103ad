"""The Group Loss; its authors load a fine-tuned classifier afterwards."""

from tests.golden.initial import Case

CASES = {
    "Group Loss": {
        "classifier before fine-tuning (cars)": Case("cars_group_loss", "classifier", channels=1024)
    }
}
