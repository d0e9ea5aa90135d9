"""Training steps that are recorded once and repeated: CUDA graphs, recorded operations.

`compute.replay` switches them; with "off" every step is taken as it is written.
"""
