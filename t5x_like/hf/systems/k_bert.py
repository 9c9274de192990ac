"""K-BERT in Hugging Face's folders, where it is a BERT that reads no knowledge graph.

A K-BERT is initialized from a BERT's folder, read as the system `k_bert`, and saved as a BERT.
"""

import dataclasses

from t5x_like.hf.systems import bert
from t5x_like.systems.k_bert import SIZES

FORMAT = dataclasses.replace(
    bert.FORMAT,
    system="k_bert",
    on_request=True,
    defaults=SIZES["base"],
    exported_only={
        **bert.FORMAT.exported_only,
        "soft_positions": True,
        "visible_matrix": True,
    },
)
