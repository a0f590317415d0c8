"""TLS: both protocols with a certificate that is valid, and what is refused before anything listens."""

import socket
import ssl

import httpx
import pytest

import windrow
from certificates import make_certificate
from served_warehouse import serve_warehouse
from windrow.access import revoke_token
from windrow.service.server import ServerSettings


def test_both_protocols_speak_tls_and_a_revoked_token_is_refused_in_use(tmp_path):
    tls = make_certificate(tmp_path, 1)
    with serve_warehouse(tmp_path / "w", host="localhost", **tls) as served:
        address = f"https://localhost:{served.server.port}"
        context = ssl.create_default_context(cafile=tls["certificate"])
        header = {"Authorization": f"Bearer {served.tokens['small']}"}
        with (
            httpx.Client(base_url=address, headers=header, verify=context, timeout=60) as client,
            windrow.connect(
                f"grpc+tls://localhost:{served.server.flight_port}", served.tokens["small"], tls["certificate"]
            ) as remote,
        ):
            assert client.post("/sql", json={"statement": "SELECT 1 AS n"}).json()["rows"] == [[1]]
            assert remote.sql("SELECT 1 AS n").fetchall() == [(1,)]
            revoke_token(served.wh._store, served.tokens["small"].split("_")[1])
            assert client.post("/sql", json={"statement": "SELECT 1"}).status_code == 401
            with pytest.raises(windrow.AccessError, match="not, or no longer, valid"):
                remote.sql("SELECT 1")
        with pytest.raises(httpx.ConnectError):
            httpx.get(address + "/healthz")  # the system does not know who signed it


def test_what_would_be_open_or_useless_is_refused_at_start(tmp_path):
    with windrow.open(tmp_path / "w") as wh:
        expired = make_certificate(tmp_path, -1)
        cases = {
            "has expired": ServerSettings(**expired),
            "both a certificate and its key": ServerSettings(certificate=expired["certificate"]),
            "no certificate with its key": ServerSettings(certificate=tmp_path / "x", key=expired["key"]),
            "without TLS tokens and rows": ServerSettings(host="0.0.0.0"),
        }
        cases["there is no token yet"] = ServerSettings(host="0.0.0.0", **make_certificate(tmp_path, 1))
        for words, settings in cases.items():
            if words == "has expired":
                make_certificate(tmp_path, -1)
            elif words == "there is no token yet":
                make_certificate(tmp_path, 1)
            with pytest.raises(windrow.AccessError, match=words):
                settings.check(wh)
        ServerSettings(host="0.0.0.0", insecure=True).check(wh)


def test_a_port_that_is_taken_is_told_and_waited_for(tmp_path):
    said: list[str] = []
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        serve_warehouse(tmp_path / "w", port=taken.getsockname()[1], say=said.append) as served,
    ):
        assert "cannot be listened on: Address already in use; choose another --port" in said[0]
        assert served.server.port is None
        served.server._listening.clear()
        taken.close()
        assert served.server._listening.wait(60)
        assert httpx.get(f"http://127.0.0.1:{served.server.port}/healthz").status_code == 200
