"""Lines of weight maps for layers that many systems have."""

from t5x_like.hf.weight_map import WeightMap


def dense(here: str, there: str) -> WeightMap:
    """Map a dense layer with a bias."""
    return {
        f"{here}/kernel": (f"{there}.weight", "O I -> I O"),
        f"{here}/bias": f"{there}.bias",
    }


def norm(here: str, there: str) -> WeightMap:
    """Map the scale and bias of a layer norm."""
    return {f"{here}/scale": f"{there}.weight", f"{here}/bias": f"{there}.bias"}


def attention(here: str, query: str, key: str, value: str, out: str) -> WeightMap:
    """Map an attention layer with biases, from the names of its four dense layers."""
    weights: dict[str, str | tuple[str, str]] = {}
    for name, there in {"query": query, "key": key, "value": value}.items():
        weights[f"{here}/{name}/kernel"] = (f"{there}.weight", "(H K) D -> D H K")
        weights[f"{here}/{name}/bias"] = (f"{there}.bias", "(H K) -> H K")
    weights[f"{here}/out/kernel"] = (f"{out}.weight", "D (H K) -> H K D")
    weights[f"{here}/out/bias"] = f"{out}.bias"
    return weights


def bert_encoder(prefix: str) -> WeightMap:
    """Map BERT's embeddings and layers; tensor names begin with `prefix` ("bert", "roberta")."""
    layer = f"{prefix}.encoder.layer.{{layer}}"
    own, block = f"{layer}.attention", "encoder/layers/{layer}"
    return {
        "embeddings/token/embedding": f"{prefix}.embeddings.word_embeddings.weight",
        "embeddings/position/embedding": f"{prefix}.embeddings.position_embeddings.weight",
        "embeddings/token_type/embedding": f"{prefix}.embeddings.token_type_embeddings.weight",
        **norm("embeddings/norm", f"{prefix}.embeddings.LayerNorm"),
        **attention(
            f"{block}/self_attention",
            f"{own}.self.query",
            f"{own}.self.key",
            f"{own}.self.value",
            f"{own}.output.dense",
        ),
        **norm(f"{block}/self_attention_norm", f"{own}.output.LayerNorm"),
        **dense(f"{block}/feed_forward/wi", f"{layer}.intermediate.dense"),
        **dense(f"{block}/feed_forward/wo", f"{layer}.output.dense"),
        **norm(f"{block}/feed_forward_norm", f"{layer}.output.LayerNorm"),
    }
