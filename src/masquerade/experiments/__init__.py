"""Trainings from beginning to end: `mq.run`, one run directory, several side by side."""
