"""uint8 activations, int8 weights, then AdaRound, in Quark's newer API."""

from common import arguments, run

from quantmill.quark.quantization.config import QConfig
from quantmill.quark.quantization.config.algorithm import AdaRoundConfig
from quantmill.quark.quantization.config.spec import Int8Spec, QLayerConfig, UInt8Spec

quant_config = QLayerConfig(activation=UInt8Spec(), weight=Int8Spec())
adaround_config = AdaRoundConfig(batch_size=1, num_iterations=1000, learning_rate=0.1)
config = QConfig(global_config=quant_config, algo_config=[adaround_config])


def main(given: list[str] | None = None) -> dict[str, float]:
    return run(config, arguments(__doc__, given))


if __name__ == "__main__":
    main()
