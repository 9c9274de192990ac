"""What the benchmark of small encoders prints."""

from benchmarks import latency


def test_a_network_is_compared_with_the_first_in_the_same_program():
    made = [
        latency.Latency(network, program, 1, 128, 2_500_000, (seconds, 9.0, 0.001))
        for network, program, seconds in [
            ("large", "jax", 0.4),
            ("large", "stablehlo", 0.3),
            ("small", "jax", 0.1),
            ("small", "stablehlo", 0.1),
        ]
    ]
    lines = latency.lines(made)
    assert [line.rpartition("), ")[2] for line in lines] == [
        "1.00 times as fast",
        "1.00 times as fast",
        "4.00 times as fast",
        "3.00 times as fast",
    ]
    assert "small" in lines[3]
    assert "stablehlo" in lines[3]
    assert "2.5 M parameters   100.0 ms (1.0 to 9000.0)" in lines[3]
