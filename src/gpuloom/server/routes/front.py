"""The page that a browser shows at the scheduler's address: what this is, and where to read on. It holds no data."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header
from starlette.responses import HTMLResponse, Response

import gpuloom
from gpuloom.server.encoded import JsonResponse

_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>gpuloom</title>
<style>
body {{ font: 16px/1.55 system-ui, sans-serif; max-width: 44rem; margin: 3rem auto; padding: 0 1.2rem; }}
body {{ color: #1c2430; }}
h1 {{ font-size: 1.7rem; margin: 0 0 .3rem; }} h2 {{ font-size: 1.05rem; margin: 2rem 0 .5rem; }}
pre {{ background: #f1f4f8; border: 1px solid #dbe2ea; border-radius: 6px; padding: .8rem 1rem; overflow-x: auto; }}
code {{ font: .9em ui-monospace, monospace; }} small {{ color: #5b6878; }} a {{ color: #0b5cad; }}
@media (prefers-color-scheme: dark) {{
  body {{ background: #12161c; color: #dde4ec; }} pre {{ background: #1b222b; border-color: #2c3642; }}
  small {{ color: #94a1b1; }} a {{ color: #6db3f8; }}
}}
</style>
<h1>gpuloom</h1>
<p>A scheduler for deep-learning jobs on shared GPUs. It is running, and this is its API.
<small>Version {version}.</small></p>
<h2>On the command line</h2>
<pre><code>gpuloom status                      state of the scheduler
gpuloom submit -- python train.py   run a job
gpuloom ls                          jobs
gpuloom why JOB                     why it waits, and when it will start
gpuloom logs -f JOB                 its output
gpuloom --help                      all the rest</code></pre>
<p>As the user who started it, on this machine. From another machine, set <code>GPULOOM_URL</code>, and
<code>GPULOOM_TOKEN_FILE</code>, a file that holds its token.</p>
<h2>From a program</h2>
<p>Every request brings the token, which the file <code>token</code> in the scheduler's home holds
(<code>gpuloom status</code> names the home):</p>
<pre><code>curl -H "Authorization: Bearer $(cat HOME/token)" ADDRESS/v1/status</code></pre>
<p>All routes are described in <a href="/openapi.json">/openapi.json</a>, jobs in
<a href="/v1/schema/job.json">/v1/schema/job.json</a>; these two and <a href="/v1/health">/v1/health</a> need no token.
<code>docs/reference/api.md</code> explains them with examples.</p>
</html>
"""


def router() -> APIRouter:
    """The route /."""
    routes = APIRouter(tags=["scheduler"])

    @routes.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    async def front(accept: Annotated[str, Header()] = "") -> Response:
        if "text/html" in accept.lower():
            return HTMLResponse(_PAGE.format(version=gpuloom.__version__), headers=_HEADERS)
        return JsonResponse(
            {
                "name": "gpuloom",
                "version": gpuloom.__version__,
                "api": "/openapi.json",
                "job_schema": "/v1/schema/job.json",
                "health": "/v1/health",
            },
            headers={"Vary": "Accept"},
        )

    return routes


_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'",
    "Referrer-Policy": "no-referrer",
    "Vary": "Accept",
}
