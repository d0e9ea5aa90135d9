"""Invented results: their form is that of `results.json`, their numbers mean nothing."""

from typing import Any

DEGREES = (0, 20, 40, 60, 80, 100)


def result(
    method: str = "fedavg", seed: int = 1, own: float = 80.0, **changes: Any
) -> dict[str, Any]:
    """Return one invented result; accuracy falls by `slope` from no shift to full shift."""
    slope = changes.pop("slope", 20.0)
    shift = {str(d): {"mean": own - slope * d / 100, "std": 5.0 + d / 20} for d in DEGREES}
    shift["averaged"] = {"mean": own - slope / 2, "std": 7.5}
    accuracy = {
        "own": {"mean": own, "std": 5.0, "weighted": own + 1, "bottom_decile": own - 9},
        "shift": shift,
        "pooled": {step: {"mean": at["mean"] + 1, "std": 2.0} for step, at in shift.items()},
    }
    history = [
        {
            "round": number,
            "own": own - 60 / number,
            "std": 5.0,
            "down": 1e4,
            "up": 1e4,
            "flops": 1e6,
        }
        for number in (5, 10, 20, 40, 60)
    ]
    return {
        "method": method,
        "title": method.upper(),
        "data": "invented",
        "seed": seed,
        "rounds": 60,
        "clients": 20,
        "view": "personal",
        "metric": "accuracy",
        "better": "higher",
        "accuracy": accuracy,
        "bytes": {"down": 1.2e6, "up": 1.1e6},
        "initial": 8.0,
        "flops": {"dense": 3e9, "masked": 2e9, "executed": 3.5e9},
        "layers": {"train": {"fc": {"dense": 3e9, "masked": 2e9, "executed": 3.5e9}}},
        "paper": {"bytes": 1.0e6, "flops": 2.5e9},
        "density": 1.0,
        "parameters": 12345,
        "kept": 12345.0,
        "storage": {"model": 49380.0, "state": 8.0, "session": 0.0},
        "participations": 30.0,
        "memory": {"process": 4.2e8},
        "seconds": 12.3,
        "time": {"start-up": 1.0, "training": 9.0, "evaluation": 3.0, "commits": 0.3},
        "per_client": {
            "own": [min(100.0, own + (client * 7 % 20) - 10) for client in range(20)],
            "ids": list(range(20)),
            "samples": [30 + client for client in range(20)],
        },
        "history": history,
    } | changes


def corrupted(method: str, **changes: Any) -> dict[str, Any]:
    """Return an invented result with corruption, gates, masks that overlap, and novel clients."""
    found = result(method, **changes)
    own = found["accuracy"]["own"]["mean"]
    steps = {"1": 5.0, "5": 15.0, "averaged": 10.0}
    kinds = {"fog": 0.0, "jpeg_compression": 20.0, "averaged": 10.0}
    found["accuracy"]["corruption"] = {
        kind: {step: {"mean": own - less - more, "std": 4.0} for step, more in steps.items()}
        for kind, less in kinds.items()
    }
    found["corrupted_images"] = "generated"
    found["history"][-1]["notes"] = {"gate_weights": [30.0, 0.0, 10.0, 0.0]}
    found["overlap"] = {"whole": 0.25, "layers": {}, "pairs": {"w": [[1.0, 0.5], [0.5, 1.0]]}}
    novel = {"own": {"mean": 71.0, "std": 3.0}, "per_client": [70.0, 72.0]}
    found["novel"] = {"clients": 2, "ids": [20, 21], "accuracy": novel, "gap": own - 71.0}
    found["rounds_to_80"] = 20
    return found


def six_methods(seed: int = 1, gain: float = 0.0) -> list[dict[str, Any]]:
    """Return invented results of the six methods of the demo."""
    tuned_cost = {"bytes": {"down": 2e4, "up": 0.0}, "flops": {"dense": 4e7, "masked": 4e7}}
    nothing = {"down": 0.0, "up": 0.0}
    sparse = {
        "bytes": {"down": 0.5e6, "up": 0.4e6},
        "flops": {"dense": 3e9, "masked": 1.3e9, "executed": 3.5e9},
        "paper": {"bytes": 4.0e5, "flops": 1.6e9},
        "density": 0.51,
    }
    results = [
        result("local", seed, 91.3 + gain, slope=55.0, title="Local", bytes=nothing),
        result("fedavg", seed, 86.2 + gain, slope=2.0, title="FedAvg", view="global"),
        result("fedavg_ft", seed, 94.1 + gain, slope=22.0, title="FedAvg+FT", adapt=tuned_cost),
        result("fedprox", seed, 86.9 + gain, slope=2.5, title="FedProx", view="global"),
        result("dmpfl", seed, 93.8 + gain, slope=30.0, title="DM-PFL", **sparse),
        result("dmpfl_plus", seed, 94.1 + gain, slope=13.0, title="DM-PFL+", **sparse),
    ]
    results[2]["history"] = results[2]["history"][-1:]
    for personal in results[4:]:
        plain = result(own=84.0 + gain, slope=3.0)["accuracy"]
        personal["accuracy"] = personal["accuracy"] | {"global": plain}
    return results
