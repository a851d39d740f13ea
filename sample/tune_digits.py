"""Find good settings for a classifier of handwritten digits with Ray Tune, on all nodes of a Ray cluster.

It needs ray[tune] beside requirements.txt: remote-tool helper-ray-launch --cmd tune_digits.py --follow
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import ray
from ray import tune
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import train_test_split


def main() -> None:
    """Run the trials, and write the best settings."""
    options = read_options()
    ray.init()
    tuner = tune.Tuner(
        tune.with_resources(train, {"cpu": 1}),
        param_space={"alpha": tune.loguniform(1e-6, 1e-1), "eta0": tune.loguniform(1e-4, 1e-1)},
        tune_config=tune.TuneConfig(metric="accuracy", mode="max", num_samples=options.trials),
        run_config=tune.RunConfig(verbose=0, storage_path=str(options.out.resolve() / "trials")),
    )
    results = tuner.fit()
    best = results.get_best_result()
    nodes = {result.metrics["node"] for result in results if result.metrics}
    assert best.config is not None
    assert best.metrics is not None
    print(f"{len(results)} trials on {len(nodes)} nodes, {results.num_errors} failed")
    print(
        f"accuracy {best.metrics['accuracy']:.3f} with alpha {best.config['alpha']:.2g}, eta0 {best.config['eta0']:.2g}"
    )
    (options.out / "best.json").write_text(json.dumps({**best.config, "accuracy": best.metrics["accuracy"]}))


def read_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=16)
    parser.add_argument("--out", type=Path, default=Path("tuned"))
    return parser.parse_args()


def train(settings: dict[str, Any]) -> None:
    """Train one classifier; runs on any node, and reports its accuracy after every epoch."""
    images, digits = load_digits(return_X_y=True)
    train_images, test_images, train_digits, test_digits = train_test_split(images / 16, digits, random_state=0)
    model = SGDClassifier(
        loss="log_loss", learning_rate="constant", alpha=settings["alpha"], eta0=settings["eta0"], random_state=0
    )
    for _ in range(10):
        model.partial_fit(train_images, train_digits, classes=range(10))
        tune.report({"accuracy": model.score(test_images, test_digits), "node": ray.util.get_node_ip_address()})


if __name__ == "__main__":
    main()
