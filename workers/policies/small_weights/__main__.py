"""`python -m workers.policies.small_weights`: answer with the small weights that are live, for the gateway.

It listens on loopback, on the port that it had before if that is free, and says where in a file of FLYWHEEL_HOME
(`served_weights`). In a network of its own, as the compose file's, `--bind` and `--url` say where and how it is
reached. Until somebody asks it holds no weights, and no torch.
"""

import argparse
import os
import signal
import threading
from contextlib import suppress
from urllib.parse import urlsplit


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "flywheel.settings")
    import django

    django.setup()
    from flywheel.agents.weights import served_weights
    from flywheel.system import env
    from workers.policies.small_weights.served_versions import ServedVersions
    from workers.policies.small_weights.weights_server import WeightsServer

    parser = argparse.ArgumentParser(prog="python -m workers.policies.small_weights", description=(__doc__ or "")[:80])
    parser.add_argument("--bind", default="127.0.0.1", help="an address of this machine to listen on")
    parser.add_argument("--port", type=int, default=0, help="0 for the one that it had before, or a free one")
    parser.add_argument("--url", default="", help="how the gateway reaches it, where that is not by this address")
    asked = parser.parse_args()
    env.prepare_home()
    known, token = served_weights.address(), served_weights.token()
    before = urlsplit(known.url).port if known and not asked.url else None
    versions = ServedVersions()
    try:
        server = WeightsServer((asked.bind, asked.port or before or 0), token, versions)
    except OSError:
        if asked.port:
            raise
        server = WeightsServer((asked.bind, 0), token, versions)
    served_weights.announce(served_weights.Address(asked.url or f"http://{asked.bind}:{server.port}", token))
    ended = threading.Event()
    threading.Thread(target=server.tend_forever, args=[ended], daemon=True).start()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with server, suppress(KeyboardInterrupt):
        server.serve_forever()
    ended.set()
    versions.close()
    os._exit(0)  # model processes end with their sockets; whoever still waits is told by the end of the connection


if __name__ == "__main__":
    main()
