"""The command `foredraft`."""


def main() -> int:
    return 0
