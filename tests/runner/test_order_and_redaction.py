"""Order of arms, salts, and what must never reach a file."""

from pddbench.replay.exchange import endpoint_url
from pddbench.runner.order import arm_salts, palindromic
from pddbench.runner.prepare import is_loopback
from pddbench.runner.redact import redact_argv, redact_config, redact_text
from pddbench.workload.experiment import Arm


def test_order_is_palindromic():
    """Without it, a host that slows down makes the last arm look bad."""
    assert palindromic(["a", "b", "c"], 3) == [
        ("a", 1), ("b", 1), ("c", 1), ("c", 2), ("b", 2), ("a", 2), ("a", 3), ("b", 3), ("c", 3)]  # fmt: skip


def test_arms_of_one_endpoint_do_not_warm_each_other():
    """Without it, the second arm on an endpoint hits the first one's cache; and arms apart would get other bytes."""
    arms = [
        Arm(name="a", base_url="http://h:1/v1", model="m"),
        Arm(name="b", base_url="http://h:1", model="m"),
        Arm(name="c", base_url="http://h:2", model="m"),
        Arm(name="d", emulated="pdd"),
        Arm(name="e", base_url="http://h:3", model="m", cache_domain="http://h:2"),
    ]
    assert arm_salts(arms, "s") == {"a": "s/a", "b": "s/b", "c": "s/c", "d": "s", "e": "s/e"}


def test_base_url_with_or_without_v1():
    """Without it, /v1 is doubled or a path before it is lost."""
    want = "http://h:1/x/v1/completions"
    for base in ("http://h:1/x", "http://h:1/x/", "http://h:1/x/v1", "http://h:1/x/v1/"):
        assert endpoint_url(base, "/v1/completions") == want
    assert endpoint_url("http://h", "/v1/chat/completions") == "http://h/v1/chat/completions"


def test_secrets_are_hidden():
    """Without it, a key given on the command line or in the file stands in the manifest."""
    argv = ["replay", "--header", "Authorization=Bearer abc", "--header=X-Key=abc", "--base-url", "http://u:abc@h/v1?k=abc",
            "--extra-body", '{"api_key": "abc"}', "--api-key-env", "NAME"]  # fmt: skip
    assert "abc" not in " ".join(redact_argv(argv))
    assert redact_argv(argv)[-1] == "NAME"
    config = {
        "arm": [{"headers": {"X": "abc"}, "api_key_env": "NAME", "extra_body": {"api_key": "abc", "top_k": 1},
                 "base_url": "http://u:abc@h/v1?k=abc", "token_id_range": [1, 2]}]}  # fmt: skip
    hidden = redact_config(config)
    assert "abc" not in str(hidden)
    assert hidden["arm"][0]["api_key_env"] == "NAME"
    assert hidden["arm"][0]["extra_body"]["top_k"] == 1
    assert hidden["arm"][0]["token_id_range"] == [1, 2]
    assert "abc" not in redact_text("cannot reach http://u:abc@h/v1?k=abc: refused")


def test_loopback():
    """Without it, load on a stranger's host starts without a question."""
    assert all(is_loopback(host) for host in ("127.0.0.1", "127.8.8.8", "::1", "localhost"))
    assert not any(is_loopback(host) for host in ("10.0.0.1", "example.org", "0.0.0.0"))
