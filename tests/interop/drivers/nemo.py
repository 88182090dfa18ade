"""In an interpreter with NeMo Gym: its agents play rows against a resources server, with its own client code.

`nemo.py ROWS RESOURCES_URL MODEL_URL AGENT MODEL`, or a folder for RESOURCES_URL to serve what was exported there.
"""

import asyncio
import json
import sys

import uvicorn
from fastapi import FastAPI
from nemo_gym.config_types import ModelServerRef, ResourcesServerRef
from nemo_gym.server_utils import GlobalAIOHTTPAsyncClientConfig, ServerClient, request, set_global_aiohttp_client
from omegaconf import OmegaConf
from pydantic import BaseModel

rows, where, model_url, kind, model = sys.argv[1:6]
del sys.argv[1:]  # NeMo Gym reads them as its own configuration
URLS = {"policy_model": model_url.removesuffix("/v1")}


class Client(ServerClient):
    """NeMo Gym's client, whose servers stand in a table instead of its head server's configuration."""

    async def request(self, server_name: str, url_path: str, method: str, **kwargs: object) -> object:
        if isinstance(kwargs.get("json"), BaseModel):
            kwargs["json"] = kwargs["json"].model_dump(exclude_unset=True)
        if server_name == "policy_model":  # rows name no model
            kwargs["json"]["model"] = model
        return await request(method=method, url=f"{URLS[server_name]}{url_path}", _internal=True, **kwargs)


def client() -> Client:
    head = {"host": "127.0.0.1", "port": 1}
    return Client(head_server_config=head, global_config_dict=OmegaConf.create({}))


async def serve(app: FastAPI) -> str:
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    serving.append(asyncio.create_task(server.serve()))
    while not server.started:
        await asyncio.sleep(0.05)
    return f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"


def resources(folder: str) -> FastAPI:
    sys.path.insert(0, folder)
    from app import Environment
    from nemo_gym.base_resources_server import BaseResourcesServerConfig

    config = BaseResourcesServerConfig(name="own", host="127.0.0.1", port=1, entrypoint="app.py", domain="agent")
    return Environment(config=config, server_client=client()).setup_webserver()


def agent() -> FastAPI:
    if kind == "simple_agent":
        from responses_api_agents.simple_agent.app import SimpleAgent as Agent
        from responses_api_agents.simple_agent.app import SimpleAgentConfig as Config
    else:
        from responses_api_agents.gymnasium_agent.app import GymnasiumAgent as Agent
        from responses_api_agents.gymnasium_agent.app import GymnasiumAgentConfig as Config
    config = Config(
        name="agent",
        host="127.0.0.1",
        port=1,
        entrypoint="app.py",
        max_steps=20,
        resources_server=ResourcesServerRef(type="resources_servers", name="own"),
        model_server=ModelServerRef(type="responses_api_models", name="policy_model"),
    )
    return Agent(config=config, server_client=client()).setup_webserver()


async def play(row: dict[str, object]) -> None:
    answer = await request("POST", f"{URLS['agent']}/run", _internal=True, json=row)
    body = json.loads(await answer.read()) if answer.ok else {}
    about = {"task": row["verifier_metadata"]["task"], "status": answer.status, "reward": body.get("reward")}
    print("RESULT " + json.dumps(about))
    if answer.ok:
        print("ROLLOUT " + json.dumps(row | body))


async def main() -> None:
    set_global_aiohttp_client(GlobalAIOHTTPAsyncClientConfig())
    URLS["own"] = where if where.startswith("http") else await serve(resources(where))
    URLS["agent"] = await serve(agent())
    with open(rows) as lines:
        await asyncio.gather(*(play(json.loads(line)) for line in lines))


serving: list[asyncio.Task[None]] = []
asyncio.run(main())
