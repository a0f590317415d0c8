"""The demo's scene with Spark, in the session that all tests share."""

import json

import pytest
from click.testing import CliRunner

from windrow import cli


@pytest.mark.spark
def test_clicks_go_in_through_spark_and_a_window_comes_out(spark):
    """Three minutes of clicks at an even pace: two minutes hold two thirds of them, spread over twenty pages."""
    arguments = ["demo", "--updates", "4", "--rows", "100", "--json"]
    result = CliRunner().invoke(cli.windrow, arguments)
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)["scenes"]["spark"]
    truth = spark.range(300_000).where("id * 600 + 1 > 60 * 1000000").selectExpr("pmod(hash(id), 20) AS page")
    counts = sorted(
        ((row["count"], f"/page/{row['page']}") for row in truth.groupBy("page").count().collect()), reverse=True
    )
    assert facts["accepted"] == 300_000
    assert facts["duplicate"] is True
    assert [tuple(row) for row in facts["top"]] == [(page, count) for count, page in counts[:5]]
