"""Data sets, samplers, transforms and the input pipeline.

options = Data(name="digits", batch_size=64, images_per_class=4)
train = formats.load(options)["train"]
sampler = samplers.build(options, train.labels, seed=0)
with pipeline.training(train, sampler, options, seed=0, stop=100) as batches:
    for images, labels, index in batches:
        ...
"""
