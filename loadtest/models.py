"""What a gateway serves, as it says itself."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from functools import cache

ANSWER_S = 10.0
# As the users do, who ask the gateway and no proxy of the environment.
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class NotServing(Exception):
    """The gateway can't be loaded now; the message says why and what to do."""


@cache
def served_model(base_url: str, api_key: str) -> str:
    """The first model of GET /v1/models. Raises NotServing."""
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        request = urllib.request.Request(f"{base_url.rstrip('/')}/v1/models", headers=headers)
        with _DIRECT.open(request, timeout=ANSWER_S) as answer:
            models = json.load(answer)["data"]
    except urllib.error.HTTPError as error:
        if error.code == 401:
            raise NotServing(f"{base_url} refuses the API key (401); set TOKENPATH_API_KEY to a valid one") from None
        raise NotServing(f"{base_url}/v1/models answers with status {error.code}") from None
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise NotServing(f"the gateway at {base_url} does not answer ({reason}); does it run?") from None
    except (ValueError, KeyError, TypeError) as error:
        raise NotServing(f"{base_url}/v1/models is not what OpenAI's API answers ({error})") from None
    if not models:
        raise NotServing(f"{base_url} serves no model now: is a worker running?")
    return str(models[0]["id"])
