"""Hand in work, keep its id, come back for the result: `python examples/task.py`."""

import os
import time

import httpx

key = os.environ.get("SHOAL_API_KEY")
headers = {"Authorization": f"Bearer {key}"} if key else {}
with httpx.Client(base_url=os.environ.get("SHOAL_URL", "http://127.0.0.1:8080"), headers=headers) as client:
    accepted = client.post(
        "/v1/tasks",
        json={
            "primitive": "encode",
            "model": "sentence-transformers/all-MiniLM-L6-v2",
            "items": [{"id": "later", "text": "Nobody waits for this one."}],
        },
    )
    accepted.raise_for_status()
    task = accepted.json()
    print(accepted.status_code, task["id"], task["state"])

    while task["state"] in ("queued", "running"):
        time.sleep(0.2)
        task = client.get(f"/v1/tasks/{task['id']}").json()

print(task["state"], task.get("error") or task["result"]["items"][0]["dense"]["values"][:3])
