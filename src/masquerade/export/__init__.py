"""Personal models for use without torch: as ONNX, cut to what masks leave, bundles, safetensors.

`predict` and `timing` need numpy and onnxruntime alone; what writes files needs torch.
"""
