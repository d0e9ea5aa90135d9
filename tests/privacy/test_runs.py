"""A private run to its end: the sheet is in its folder, on its page, and in its result."""

from pathlib import Path

import masquerade as mq
from masquerade.laws.toy import federation, network
from masquerade.report import privacy


def test_a_private_run_says_what_it_guarantees_wherever_it_is_read(tmp_path: Path, plain_pages):
    asked = mq.Privacy(unit="sample", noise_multiplier=2.0, delta=1e-3)
    found = mq.run(
        mq.methods.FedAvg(local_epochs=1),
        network(),
        federation(),
        rounds=2,
        batch_size=2,
        views=["global"],
        privacy=asked,
        evaluate=mq.Evaluate(every=0, degrees=(0,)),
        out=tmp_path / "run",
        progress=False,
    )
    sheet = found.privacy
    assert sheet is not None
    made = sheet.guarantee
    assert made is not None
    assert 0 < max(made.clients.values()) == made.epsilon
    assert {line.epsilon for line in sheet.lines if line.name == "params"} == {made.epsilon}
    assert {line.epsilon for line in sheet.lines if line.name in ("facts", "figures")} == {None}
    assert mq.load_result(tmp_path / "run").privacy == sheet
    assert sheet.epsilon in (tmp_path / "run" / "report.html").read_text("utf-8")
    assert sheet.epsilon in privacy.line([sheet])
    assert sheet.epsilon in privacy.markdown([sheet])
