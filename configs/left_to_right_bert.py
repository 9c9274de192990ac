"""Left-to-right BERT without next sentence prediction, the baseline of BERT's table 5.

    python -m t5x_like.train --config=configs/left_to_right_bert.py:base \
        --config.workdir=runs/left_to_right --config.data.vocabulary=vocab.txt

Sizes: `demo`, `base`, `large`. All settings are the same as in configs/bert.py, except:

| Devlin et al. 2018, section 5.1 | here |
|---|---|
| left context only, also in fine-tuning | system=left_to_right_bert |
| a left-to-right language model instead of a masked one | model.head=language_modeling |
| no next sentence prediction | data.objective_settings.next_sentence=False |

The rows are BERT's, whose original tokens are read and predicted. Fine-tuning, without and with a
BiLSTM between the encoder and the head ("+ BiLSTM"; the paper gives no width here):

    python -m t5x_like.train --config=configs/fine_tuning.py:question_answering \
        --config.initialize=runs/left_to_right --config.workdir=runs/squad \
        --config.data.settings.train=train-v1.1.json
    ... --config.model.lstm_layers=1 --config.model.lstm_width=768

The paper's base, pretrained like BERT, reaches 82.1 on MNLI and 77.8 F1 on SQuAD 1.1, where BERT
has 84.4 and 88.5, and 84.9 F1 with the BiLSTM. The demo has not been compared with them.
"""

import ml_collections

from configs import bert


def get_config(size: str = "base") -> ml_collections.ConfigDict:
    """Return the config of one of the sizes above."""
    config = bert.get_config(size)
    config.system = "left_to_right_bert"
    config.workdir = f"runs/left_to_right_bert_{size}"
    config.model.head = "language_modeling"
    config.data.objective_settings = {"whole_word": False, "next_sentence": False}
    return config
