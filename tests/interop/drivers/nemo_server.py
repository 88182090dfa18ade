"""In an interpreter with NeMo Gym: one of its own resources servers, until it is ended.

`nemo_server.py NAME CLASS` prints the address, and where the example rows of its data lie.
"""

import asyncio
import importlib
import sys
from pathlib import Path

import uvicorn
from nemo_gym.server_utils import ServerClient
from omegaconf import OmegaConf

name, kind = sys.argv[1:3]
del sys.argv[1:]  # NeMo Gym reads them as its own configuration


async def main() -> None:
    module = importlib.import_module(f"resources_servers.{name}.app")
    made = getattr(module, kind)
    config = made.model_fields["config"].annotation(
        name=name, host="127.0.0.1", port=1, entrypoint="app.py", domain="agent"
    )
    client = ServerClient(head_server_config={"host": "127.0.0.1", "port": 1}, global_config_dict=OmegaConf.create({}))
    app = made(config=config, server_client=client).setup_webserver()
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.05)
    address = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    print(address, Path(module.__file__).parent / "data/example.jsonl", flush=True)
    await serving


asyncio.run(main())
