"""Saying that a check was left out, in TAP, so that it is counted and nobody takes it for a pass."""


def skipped(tap, name, reason):
    tap.count += 1
    print(f"ok {tap.count} - {name} # SKIP {reason}", flush=True)
