"""Rules on outputs that use label mixes: by hand, on toys whose Bayes posterior is known."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import masquerade as mq
from masquerade.core.metric import OutputRule, RuleClient
from masquerade.core.random import draw, normal, uniform
from masquerade.rules import PRIORS
from masquerade.rules.em import chance, em, gained, log_evidence
from masquerade.rules.label_mix import LabelMix, calibrated, label_mix
from tests.support import federation, network, raises

MEANS = torch.eye(4, dtype=torch.float64) * 3
"""Four classes, each a normal cloud; samples are of four numbers."""
UNIFORM = torch.full((4,), 0.25, dtype=torch.float64)
SKEWED = torch.tensor([0.7, 0.1, 0.1, 0.1], dtype=torch.float64)


def drawn(mix: Tensor, count: int, key: int) -> tuple[Tensor, Tensor]:
    """Samples of a mix, and their classes."""
    y = torch.bucketize(uniform(key, (count,), torch.float64), mix.cumsum(0)).clamp(max=3)
    return MEANS[y] + normal(key + 1, (count, 4), torch.float64), y


def model(x: Tensor, mix: Tensor = UNIFORM) -> Tensor:
    """The Bayes model of samples of a mix: its logits."""
    return -((x[:, None] - MEANS) ** 2).sum(-1) / 2 + mix.log()


def client(mix: Tensor = SKEWED, prior: Tensor = UNIFORM, count: int = 200) -> RuleClient:
    """A client of a mix, with a model that was trained on another."""
    x, y = drawn(mix, count, 5)
    return RuleClient(0, drawn(mix, 4000, 9)[1], model(x, prior), y)


def accuracy(outputs: Tensor, y: Tensor) -> float:
    return float((outputs.argmax(-1) == y).double().mean())


def test_em_by_hand() -> None:
    # One step from (1/2, 1/2): posteriors (3/4, 1/4), (3/4, 1/4), (1/5, 4/5); their mean is next.
    likelihoods = torch.tensor([[3.0, 1.0], [3.0, 1.0], [1.0, 4.0]], dtype=torch.float64).log()
    first = torch.softmax(likelihoods, -1).mean(0)
    assert first.tolist() == pytest.approx([1.7 / 3, 1.3 / 3])
    # The evidence of (q, 1 - q) is (1 + 2q)² (4 - 3q), which is largest at q = 13/18.
    found = em(likelihoods, torch.tensor([0.5, 0.5], dtype=torch.float64))
    assert found.tolist() == pytest.approx([13 / 18, 5 / 18], abs=1e-6)
    expected = 2 * torch.tensor(1 + 26 / 18).log() + torch.tensor(4 - 39 / 18).log()
    assert log_evidence(likelihoods, found) == pytest.approx(float(expected), abs=1e-6)


def test_em_finds_the_mix_under_pure_label_shift() -> None:
    mix = torch.tensor([0.05, 0.15, 0.5, 0.3], dtype=torch.float64)
    x, _ = drawn(mix, 4000, 1)
    assert em(model(x), SKEWED).tolist() == pytest.approx(mix.tolist(), abs=0.02)


def test_what_chance_gains_is_half_of_the_quantile_of_chi_squared() -> None:
    from scipy.stats import chi2

    for free in (1, 9, 99):
        assert chance(free) == pytest.approx(chi2.ppf(0.95, free) / 2, rel=0.03)
    assert chance(9) == pytest.approx(8.46, abs=0.02)


def test_the_mix_is_counted_with_one_sample_more_of_each_class() -> None:
    assert label_mix(torch.tensor([0, 0, 2]), 3).tolist() == pytest.approx([3 / 6, 1 / 6, 2 / 6])


@pytest.mark.parametrize("prior", [UNIFORM, SKEWED], ids=["shared", "personal"])
def test_own_is_bayes_whatever_mix_the_model_contains(prior: Tensor) -> None:
    who = client(prior=prior, count=2000)
    x, y = drawn(SKEWED, 4000, 21)
    strength = LabelMix.of(who, 4).strength
    assert strength == pytest.approx(1.0 if prior is UNIFORM else 0.0, abs=0.15)
    found = PRIORS["own"](model(x, prior), who)
    bayes = torch.softmax(model(x, SKEWED), -1)
    assert float((found.exp() - bayes).abs().mean()) < 0.01
    assert accuracy(found, y) == pytest.approx(accuracy(bayes, y), abs=0.005)


def test_evidence_weighs_two_posteriors_by_hand() -> None:
    who = client(count=2000)
    known = LabelMix.of(who, 4)
    outputs = model(MEANS + 0.2)
    likelihoods = known.likelihoods(outputs).exp()
    parts = []
    for mix in (known.mix, UNIFORM):
        evidence = (likelihoods * mix).sum(-1, keepdim=True)
        parts.append((evidence, likelihoods * mix / evidence))
    total = sum(evidence for evidence, _ in parts)
    expected = sum(evidence / total * posterior for evidence, posterior in parts)
    torch.testing.assert_close(PRIORS["evidence"](outputs, who).exp(), expected)
    # Between two clouds nothing is known of it: that is no sample like those at home.
    unsure = model(MEANS.mean(0, keepdim=True))
    assert torch.equal(PRIORS["evidence"](unsure, who), PRIORS["own"](unsure, who))


@pytest.mark.parametrize("name", ["batch", "online"])
def test_label_shift_is_found_and_used(name: str) -> None:
    who, mix = client(), SKEWED.flip(0)
    x, y = drawn(mix, 300, 31)
    outputs = model(x)
    found, bayes = PRIORS[name](outputs, who), model(x, mix)
    assert accuracy(found, y) >= accuracy(bayes, y) - 0.01
    assert accuracy(found, y) > accuracy(PRIORS["own"](outputs, who), y)
    assert not torch.equal(found, PRIORS["own"](outputs, who))


def biased(x: Tensor) -> Tensor:
    """A model that takes some of every class for the last, which is rare at home."""
    return model(x, SKEWED) + torch.tensor([0.0, 0.0, 0.0, 2.5], dtype=torch.float64)


@pytest.mark.parametrize("name", ["batch", "online"])
def test_a_model_that_sees_a_shift_at_home_needs_more_evidence_elsewhere(name: str) -> None:
    x, y = drawn(SKEWED, 400, 5)
    who = RuleClient(0, drawn(SKEWED, 4000, 9)[1], biased(x), y)
    known = LabelMix.of(who, 4)
    assert known.calibrated
    # On the client's own data its mistakes are not taken for another mix.
    outputs = biased(drawn(SKEWED, 400, 51)[0])
    assert gained(
        known.likelihoods(outputs), em(known.likelihoods(outputs), known.mix), known.mix
    ) > chance(3)
    assert torch.equal(PRIORS[name](outputs, who), PRIORS["own"](outputs, who))
    # A shift that is larger than its mistakes is still found.
    far = biased(drawn(SKEWED.flip(0), 400, 61)[0])
    assert not torch.equal(PRIORS[name](far, who), PRIORS["own"](far, who))


def test_of_a_mix_that_was_added_nothing_is_fitted() -> None:
    x, y = drawn(SKEWED, 200, 5)
    labels = drawn(SKEWED, 4000, 9)[1]
    mix = label_mix(labels, 4)
    # Weights that unlearned some of the mix: the outputs seem to lack it.
    unlearned = model(x) - mix.log() / 2
    outputs = unlearned + mix.log()
    assert LabelMix.of(RuleClient(0, labels, outputs, y), 4).strength > 0.2
    known = LabelMix.of(RuleClient(0, labels, outputs, y, contains_mix=True), 4)
    assert known.strength == 0
    expected = torch.log_softmax(unlearned, -1)
    torch.testing.assert_close(torch.log_softmax(known.likelihoods(outputs), -1), expected)


def moved() -> Tensor:
    """Samples that moved towards the middle of the classes: other features, not other labels."""
    return model(0.2 * drawn(SKEWED.flip(0), 300, 31)[0] + 0.8 * MEANS.mean(0))


@pytest.mark.parametrize("name", ["batch", "online"])
def test_rules_fall_back_to_own_where_features_shift(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    who, outputs = client(), moved()
    own = PRIORS["own"](outputs, who)
    assert torch.equal(PRIORS[name](outputs, who), own)
    # It is this test that stops them, and not too little evidence.
    monkeypatch.setattr("masquerade.rules.label_mix.LESS_SURE", -torch.inf)
    assert not torch.equal(PRIORS[name](outputs, who), own)


def test_evidence_falls_back_to_own_where_a_sample_is_unlike_those_at_home() -> None:
    who = client()
    differ = {
        name: (PRIORS["evidence"](outputs, who) != PRIORS["own"](outputs, who)).any(-1)
        for name, outputs in {"moved": moved(), "clean": model(drawn(SKEWED, 300, 31)[0])}.items()
    }
    assert differ["moved"].double().mean() < 0.15
    assert differ["clean"].double().mean() > 0.9


@pytest.mark.parametrize("name", ["batch", "online"])
def test_rules_fall_back_to_own_where_there_is_little_evidence(name: str) -> None:
    who = client()
    for key in range(5):
        outputs = model(drawn(SKEWED, 10, 50 + 2 * key)[0])
        assert torch.equal(PRIORS[name](outputs, who), PRIORS["own"](outputs, who))


@pytest.mark.parametrize("name", ["batch", "online", "evidence"])
def test_rules_fall_back_to_own_where_the_model_is_badly_calibrated(name: str) -> None:
    plain = client()
    wrong = (plain.reference_labels + 1) % 4
    mistaken = torch.where(draw(3, len(wrong)) % 3 == 0, wrong, plain.reference_labels)
    who = RuleClient(0, plain.labels, 5 * plain.reference, mistaken)
    assert not LabelMix.of(who, 4).calibrated
    assert LabelMix.of(plain, 4).calibrated
    outputs = 5 * model(drawn(SKEWED.flip(0), 300, 31)[0])
    assert torch.equal(PRIORS[name](outputs, who), PRIORS["own"](outputs, who))


def test_calibration_by_hand() -> None:
    posterior = torch.tensor([[0.9, 0.1]] * 10, dtype=torch.float64)
    right = torch.tensor([0] * 9 + [1])
    assert calibrated(posterior, right)
    # Sure by 0.9 and right by 0.1: off by 0.8, where 0.1 and two standard errors (0.2) are let be.
    assert not calibrated(posterior, 1 - right)
    assert not calibrated(posterior[:4], right[:4])


def test_online_depends_on_earlier_samples_alone() -> None:
    who = client()
    x, _ = drawn(SKEWED.flip(0), 80, 31)
    outputs = model(x)
    whole = PRIORS["online"](outputs, who)
    for cut in (1, 40, 79):
        other = torch.cat([outputs[:cut], outputs[cut:].flip(1)])
        assert torch.equal(PRIORS["online"](other, who)[:cut], whole[:cut])
        assert torch.equal(PRIORS["online"](outputs[:cut], who), whole[:cut])
    # The last one is answered otherwise after other ones.
    before = torch.cat([outputs[:-1].flip(1), outputs[-1:]])
    assert not torch.equal(PRIORS["online"](before, who)[-1], whole[-1])


@pytest.mark.parametrize("name", PRIORS)
def test_where_all_classes_are_alike_no_decision_changes(name: str) -> None:
    x, y = drawn(UNIFORM, 200, 5)
    who = RuleClient(0, torch.arange(400) % 4, model(x), y)
    outputs = model(drawn(UNIFORM, 60, 71)[0])
    assert torch.equal(PRIORS[name](outputs, who).argmax(-1), outputs.argmax(-1))


@pytest.mark.parametrize("name", PRIORS)
def test_a_model_that_diverged_stops_no_evaluation(name: str) -> None:
    plain = client()
    who = RuleClient(0, plain.labels, plain.reference * torch.nan, plain.reference_labels)
    outputs = model(drawn(SKEWED, 20, 3)[0])
    assert PRIORS[name](outputs * torch.nan, who).shape == outputs.shape
    assert PRIORS[name](outputs * torch.nan, plain).shape == outputs.shape


def test_online_thinks_no_class_impossible_after_many_samples() -> None:
    outputs = model(MEANS[:1]).expand(40_000, -1)
    assert PRIORS["online"](outputs, client()).isfinite().all()


@pytest.mark.parametrize("name", PRIORS)
def test_a_rule_changes_neither_type_nor_input(name: str) -> None:
    who, outputs = client(), model(drawn(SKEWED, 20, 3)[0]).float()
    before = outputs.clone()
    found = PRIORS[name](outputs, who)
    assert found.dtype == torch.float32
    assert torch.equal(outputs, before)


def trained(engine: str = "loop", **more: object) -> mq.Result:
    evaluate = mq.Evaluate(every=0, degrees=(0, 100), draws=2, prior=("none", *PRIORS))
    settings = {"evaluate": evaluate, "compute": mq.Compute(engine=engine)} | more
    method = mq.methods.FedAvg(lr=0.1, local_epochs=1)
    task = settings.pop("task", None) or network()
    data = settings.pop("federation", None) or federation()
    return mq.run(method, task, data, 1, batch_size=4, **settings)


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_settings_name_rules_and_summaries_tell_them_apart(engine: str) -> None:
    found = trained(engine).summaries
    assert len(found) == 2
    for summary in found:
        scopes = {name: under.scope for name, under in summary.rules.items()}
        assert scopes == {
            "own": "sample",
            "evidence": "sample",
            "batch": "several",
            "online": "several",
        }
        assert mq.Summary.from_json(summary.to_json()) == summary
        assert summary.rules["own"].accuracy.shift.keys() == {"0", "100", "averaged"}


def test_outputs_are_computed_once_for_all_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    from masquerade.engine.loop import Loop

    plain, asked = Loop.outputs, []

    def counted(self: Loop, models: object, samples: object, x: Tensor) -> object:
        asked.append([len(own) for own in samples])  # type: ignore[attr-defined]
        return plain(self, models, samples, x)  # type: ignore[arg-type]

    # Whether models answer with one class may need outputs too, and has nothing to do with rules.
    monkeypatch.setattr("masquerade.evaluation.one_class.may_be_one_class", lambda *given: False)
    monkeypatch.setattr(Loop, "outputs", counted)
    views = len(trained().summaries)
    many = len(asked)
    # For every view, once for reference samples and once for all test samples.
    assert many == 2 * views
    data = federation()
    held_out = [len(v) or len(t) for v, t in zip(data.validation, data.train, strict=True)]
    assert asked[0] == held_out
    asked.clear()
    trained(evaluate=mq.Evaluate(every=0, degrees=(0, 100), draws=2, prior=("own",)))
    assert len(asked) == many


@pytest.mark.parametrize("split", ["test", "validation"])
def test_no_rule_sees_a_label_or_a_sample_that_is_evaluated(split: str) -> None:
    from masquerade.evaluation.outputs import reference_samples

    data = federation()
    seen: list[RuleClient] = []

    def watch(outputs: Tensor, who: RuleClient) -> Tensor:
        seen.append(who)
        return outputs

    rule = OutputRule(watch, "sample", reference=True)
    degrees = (0, 100)
    evaluate = mq.Evaluate(every=0, degrees=degrees, split=split)
    trained(evaluate=evaluate, rules={"watch": rule})
    evaluated = torch.cat(list(getattr(data, split))).tolist()
    samples = reference_samples(data, split, 1)
    # The first is the trial before training.
    assert {who.id for who in seen[1:]} == set(range(data.clients))
    for who in seen[1:]:
        own = samples[who.id]
        assert not set(own.tolist()) & set(evaluated)
        assert torch.equal(who.reference_labels, data.y[own])
        assert len(who.reference) == len(own)
        assert torch.equal(who.labels, data.y[data.train[who.id]])


def test_a_rule_of_several_samples_gets_them_in_random_order_and_gives_them_back_in_theirs() -> (
    None
):
    seen: dict[str, list[Tensor]] = {"plain": [], "mixed": []}

    def rule(name: str) -> Callable[[Tensor, RuleClient], Tensor]:
        def watch(outputs: Tensor, who: RuleClient) -> Tensor:
            seen[name].append(outputs)
            return outputs

        return watch

    # A plain function may look at several samples, too.
    rules = {"plain": OutputRule(rule("plain"), scope="sample"), "mixed": rule("mixed")}
    (summary, *_) = trained(evaluate=mq.Evaluate(every=0, degrees=(0, 100)), rules=rules).summaries
    assert summary.rules["plain"].accuracy == summary.rules["mixed"].accuracy
    pairs = list(zip(seen["plain"], seen["mixed"], strict=True))
    assert any(not torch.equal(left, right) for left, right in pairs)
    for left, right in pairs:
        assert sorted(left.tolist()) == sorted(right.tolist())


def test_what_has_no_classes_is_refused_before_training() -> None:
    data = federation()
    task = mq.Task(
        torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(data.x[0].numel(), 1).double()),
        loss=lambda outputs, y: (outputs[:, 0] - y) ** 2,
        metric=lambda outputs, y: (outputs[:, 0] - y).abs(),
        better="lower",
    )
    with raises("E202"):
        trained(task=task)


def test_a_client_without_training_labels_is_refused_before_training() -> None:
    from dataclasses import replace

    data = federation()
    bare = replace(data, train=(data.train[0][:0], *data.train[1:]))
    with raises("E202"):
        trained(federation=bare)


def test_a_prior_that_is_not_there_or_is_there_twice_is_refused() -> None:
    with raises("E201", "`evaluate.prior`", "`batch`"):
        trained(evaluate=mq.Evaluate(prior=("batches",)))
    with raises("E202"):
        trained(rules={"own": lambda outputs, who: outputs})


def test_a_scope_that_is_not_there_is_refused() -> None:
    with raises("E202"):
        OutputRule(lambda outputs, who: outputs, "all")
