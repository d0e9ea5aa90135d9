"""A personal model that leaves: as ONNX, cut to what its masks leave, in a bundle, as safetensors.

`predict` and `timing` need numpy and onnxruntime alone; what writes files needs torch.
"""
