"""Training steps that are found out once and repeated: CUDA graphs, recorded operations.

All of it stands behind `compute.replay`; with "off" every step is taken as it is written.
"""
