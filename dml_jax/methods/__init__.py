"""Methods of deep metric learning, one module or package per paper, and the interface they share.

    from dml_jax.backbones import resnet
    from dml_jax.methods import TrainingSet, hist

    data = TrainingSet(classes=98, images=8_054)
    method = hist.build(hist.Config(tau=32), resnet.build(resnet.Config()), data)

In a configuration, `method.name` is the name of the module.
"""

from dml_jax.methods.contract import Aux, Batch, Hooks, Method, Teaching, TrainingSet

__all__ = ["Aux", "Batch", "Hooks", "Method", "Teaching", "TrainingSet"]
