"""Flower's simulation, with as many actors as there are processes."""

import os
import sys
from importlib.metadata import version

import flower_client
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from protocol import Ledger, evaluate, given


def serve(grid: Grid, path: str) -> None:
    """Run the rounds and report."""
    work, data, model = given(path)
    ledger = Ledger(work)

    def evaluate_centrally(number: int, arrays: ArrayRecord) -> None:
        # Flower calls this after every round, and once before the first.
        if not number:
            return
        if ledger.due():
            model.load_state_dict(arrays.to_torch_state_dict())
            evaluate(model, data.test_x, data.test_y)
            ledger.evaluated()
        ledger.mark()

    def count(records, key) -> MetricRecord:
        steps = sum(int(record["metrics"]["steps"]) for record in records)
        ledger.steps += steps
        return MetricRecord({"steps": steps})

    # It waits for all nodes: with fewer, its first rounds would have smaller cohorts.
    strategy = FedAvg(
        work.cohort / data.clients,
        0.0,
        min_train_nodes=work.cohort,
        min_available_nodes=data.clients,
        train_metrics_aggr_fn=count,
    )
    result = strategy.start(
        grid, ArrayRecord(model.state_dict()), num_rounds=work.total, evaluate_fn=evaluate_centrally
    )
    model.load_state_dict(result.arrays.to_torch_state_dict())
    ledger.loss, ledger.accuracy = evaluate(model, data.test_x, data.test_y)
    ledger.version = f"flwr {version('flwr')}, ray {version('ray')}"
    ledger.write(sys.argv[2])


def main() -> None:
    path = os.environ["PEERS_WORK"] = sys.argv[1]
    work, data, _ = given(path)
    server = ServerApp()

    @server.main()
    def rounds(grid: Grid, context: Context) -> None:
        serve(grid, path)

    resources = {"num_cpus": 1, "num_gpus": 0.0 if work.device == "cpu" else 1 / work.processes}
    start = {"num_cpus": work.processes, "include_dashboard": False, "log_to_driver": False}
    backend = {"init_args": start, "client_resources": resources}
    run_simulation(server, flower_client.app, data.clients, backend_config=backend)


if __name__ == "__main__":
    main()
