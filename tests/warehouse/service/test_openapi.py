"""The OpenAPI document is true to the code: requests made out of it get no answer that is the server's fault."""

import hypothesis
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings

SEED = 20


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("examples", [3, pytest.param(60, marks=pytest.mark.soak)])
def test_requests_that_the_document_allows_get_answers_that_it_names(served, examples):
    with served.client("operator") as client:
        document = client.get("/openapi.json").json()
        schema = schemathesis.openapi.from_dict(document)
        for result in schema.get_all_operations():
            operation = result.ok()
            if operation.path == "/events":
                continue  # it does not end

            @hypothesis.seed(SEED)
            @settings(
                max_examples=examples, deadline=None, database=None, phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )  # fmt: skip
            @given(case=operation.as_strategy())
            def probe(case) -> None:
                response = case.call(base_url=str(client.base_url), headers=dict(client.headers) | dict(case.headers))
                named = document["paths"][case.operation.path][case.method.lower()]["responses"]
                assert response.status_code < 500, (SEED, case.as_curl_command(), response.text)
                assert str(response.status_code) in named or response.status_code == 405, (SEED, response.status_code)

            probe()
