"""Shared by the configurations of MPN, its students and the Group Loss: the network and the authors' protocol.

The settings of `*_mpn.py` and `*_student.py` are those of the authors' configuration files, unrounded
(github.com/dvl-tum/intra_batch). The code contains details that the paper does not mention: max pooling, random
erasing, a standard deviation of 0.299 instead of 0.229 for red, and two updates of the running batch statistics per
step (activations are recomputed in the backward pass).

Paper and code disagree on test images: the paper resizes them to 256 x 256; its code resizes the shorter side to 256,
which is done here. For the `large` images, the paper gives only the size, 256 x 256; the shorter side of 288 is that of
the methods it compares with there.
"""

from dataclasses import replace

from dml_jax.backbones import resnet

BACKBONE = replace(
    resnet.resnet50(),
    pretrained="weights/resnet50",
    stage_bn_updates=2,
    pixels=resnet.Pixels(std=(0.299, 0.224, 0.225)),
)
# After 30 and 50 epochs, the code of MPN and of the Group Loss returns to the best epoch; it decays the learning rate
# only at the first of the two. The clean protocol decays it but does not go back.
PAPER_PROTOCOL = {
    "data.exif_rotation": False,  # the authors' loaders ignore it
    "train.select": "test",  # the epoch that is best on the test classes
    "train.reload_best_epochs": (30, 50),
    "evaluation.protocol": "paper",  # drops the first neighbour, whichever image it is
}
