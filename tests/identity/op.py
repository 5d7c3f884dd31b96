"""An OpenID Connect provider for tests in its own process; `/control` makes it lie.

Run as `python -m tests.identity.op PORT`. It needs no sign-in: `/authorize` returns the claims set last.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import sys
import time
from typing import Any
from urllib.parse import parse_qsl, urlencode

import jwt
import uvicorn
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

CLIENT, SECRET = "berth", "client-secret"


def b64(data: bytes) -> str:
    """Base64 as in a JSON Web Token."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class Provider:
    """The current claims and lies, and the issued codes."""

    def __init__(self, issuer: str) -> None:
        self.issuer = issuer
        self.reset()

    def reset(self) -> None:
        self.claims: dict[str, Any] = {}
        self.lies: dict[str, Any] = {}
        self.codes: dict[str, dict[str, str]] = {}
        self.tokens: dict[str, str] = {}
        self.rotate()

    def rotate(self) -> None:
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.kid = secrets.token_hex(4)

    def jwks(self) -> dict[str, Any]:
        public = jwt.algorithms.RSAAlgorithm.to_jwk(self.key.public_key(), as_dict=True)
        return {"keys": [{**public, "kid": self.kid, "use": "sig", "alg": "RS256"}]}

    def signed(self, payload: dict[str, Any]) -> str:
        match self.lies.get("signature"):
            case "none":
                return jwt.encode(payload, None, algorithm="none", headers={"kid": self.kid})
            case "hmac":
                # The attack that uses the public key as an HMAC secret.
                public = self.key.public_key().public_bytes(
                    serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
                )
                head = b64(json.dumps({"alg": "HS256", "typ": "JWT", "kid": self.kid}).encode())
                signed = f"{head}.{b64(json.dumps(payload).encode())}"
                return f"{signed}.{b64(hmac.digest(public, signed.encode(), 'sha256'))}"
            case "other":
                other = rsa.generate_private_key(public_exponent=65537, key_size=2048)
                return jwt.encode(payload, other, algorithm="RS256", headers={"kid": self.kid})
            case "unknown key":
                return jwt.encode(payload, self.key, algorithm="RS256", headers={"kid": "unknown"})
        return jwt.encode(payload, self.key, algorithm="RS256", headers={"kid": self.kid})

    def id_token(self, nonce: str) -> str:
        now = int(time.time())
        payload = {"iss": self.issuer, "aud": CLIENT, "iat": now, "exp": now + 300, "nonce": nonce}
        payload |= self.claims
        payload |= self.lies.get("id_token", {})
        for name, seconds in self.lies.get("shift", {}).items():
            payload[name] += seconds
        return self.signed({name: value for name, value in payload.items() if value is not None})


provider: Provider


async def control(request: Request) -> Response:
    values = await request.json()
    if values.get("reset"):
        provider.reset()
    if values.get("rotate"):
        provider.rotate()
    provider.claims = values.get("claims", provider.claims)
    provider.lies = values.get("lies", {})
    if "logout_token" in values:
        return JSONResponse({"token": provider.signed(values["logout_token"])})
    return JSONResponse({})


async def discovery(_request: Request) -> Response:
    if provider.lies.get("down"):
        return Response("out of order", status_code=503)
    issuer = provider.issuer
    return JSONResponse(
        {
            "issuer": issuer,
            "authorization_endpoint": f"{issuer}/authorize",
            "token_endpoint": f"{issuer}/token",
            "userinfo_endpoint": f"{issuer}/userinfo",
            "jwks_uri": f"{issuer}/jwks",
            "end_session_endpoint": f"{issuer}/end",
            "token_endpoint_auth_methods_supported": ["client_secret_basic"],
            **provider.lies.get("discovery", {}),
        }
    )


async def authorize(request: Request) -> Response:
    query = dict(request.query_params)
    assert query["client_id"] == CLIENT
    if provider.lies.get("deny"):
        answer = {"error": "access_denied", "state": query["state"]}
    else:
        code = secrets.token_urlsafe(16)
        provider.codes[code] = query
        answer = {"code": code, "state": query["state"]}
    return RedirectResponse(f"{query['redirect_uri']}?{urlencode(answer)}", status_code=302)


async def token(request: Request) -> Response:
    form = dict(parse_qsl((await request.body()).decode()))
    expected = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
    authorization = provider.codes.pop(form.get("code", ""), None)
    challenge = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
    proof = b64(challenge)
    if (
        authorization is None
        or request.headers.get("authorization") != f"Basic {expected}"
        or authorization.get("code_challenge") != proof
        or authorization.get("redirect_uri") != form.get("redirect_uri")
    ):
        return JSONResponse({"error": "invalid_grant"}, status_code=400)
    access = secrets.token_urlsafe(16)
    response = {
        "access_token": access,
        "token_type": "Bearer",
        "id_token": provider.id_token(authorization["nonce"]),
    }
    return JSONResponse(
        {name: value for name, value in response.items() if name not in provider.lies.get("lacks", [])}
    )


async def userinfo(_request: Request) -> Response:
    return JSONResponse({**provider.claims, **provider.lies.get("userinfo", {})})


async def jwks(_request: Request) -> Response:
    return JSONResponse(provider.jwks())


app = Starlette(
    routes=[
        Route("/control", control, methods=["POST"]),
        Route("/.well-known/openid-configuration", discovery),
        Route("/authorize", authorize),
        Route("/token", token, methods=["POST"]),
        Route("/userinfo", userinfo),
        Route("/jwks", jwks),
    ]
)

if __name__ == "__main__":
    port = int(sys.argv[1])
    provider = Provider(f"http://127.0.0.1:{port}")
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")
