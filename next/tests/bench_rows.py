# SPDX-License-Identifier: Apache-2.0
"""Figures of the first version's benchmarks (bench/RESULTS.md): what real tools made of real models."""

# Model, tool, metric, the float model's figure, the result's, agreement, relative error of the outputs.
ONNX = [
    ("file types (Magika)", "fewbit", "accuracy", 0.7523, 0.7523, 0.9817, 0.0245),
    ("file types (Magika)", "NNCF", "accuracy", 0.7523, 0.6606, 0.8899, 0.398),
    ("file types (Magika)", "ORT, per tensor", "accuracy", 0.7523, 0.6789, 0.8624, 0.3072),
    ("layout detector (PicoDet)", "fewbit", "f1", 0.6731, 0.6632, 0.972, 0.0716),
    ("layout detector (PicoDet)", "NNCF", "f1", 0.6731, 0.0023, 0.0128, 0.915),
    ("layout detector (PicoDet)", "ORT, per tensor", "f1", 0.6731, 0.0, 0.0096, 1.0026),
    ("layout detector (PicoDet)", "ORT, per channel", "f1", 0.6731, 0.2764, 0.4047, 0.6786),
    ("document segmentation (U-Net)", "fewbit", "iou", 0.7363, 0.7356, 0.9863, 0.0278),
    ("document segmentation (U-Net)", "NNCF", "iou", 0.7363, 0.7153, 0.8916, 0.1998),
    ("document segmentation (U-Net)", "ORT, per tensor", "iou", 0.7363, 0.0, 0.0, 0.8965),
    ("document segmentation (U-Net)", "ORT, per channel", "iou", 0.7363, 0.0, 0.0, 0.8965),
    ("page orientation (PP-LCNet)", "fewbit", "accuracy", 0.9975, 0.9925, 0.995, 0.0215),
    ("page orientation (PP-LCNet)", "NNCF", "accuracy", 0.9975, 0.9975, 1.0, 0.0198),
    ("page orientation (PP-LCNet)", "ORT, per tensor", "accuracy", 0.9975, 0.9075, 0.91, 0.3314),
    ("page orientation (PP-LCNet)", "ORT, per channel", "accuracy", 0.9975, 0.99, 0.9925, 0.0706),
    ("page orientation (PP-LCNet)", "ORT, percentile", "accuracy", 0.9975, 0.99, 0.9925, 0.0625),
    ("page orientation (PP-LCNet)", "ORT, entropy", "accuracy", 0.9975, 0.99, 0.9925, 0.0706),
    ("text recognizer (PP-OCRv4)", "fewbit", "words", 0.9825, 0.9825, 0.995, 0.0809),
    ("text recognizer (PP-OCRv4)", "NNCF", "words", 0.9825, 0.795, 0.795, 0.2455),
    ("text recognizer (PP-OCRv4)", "NNCF, TRANSFORMER", "words", 0.9825, 0.9175, 0.925, 0.2373),
    ("text recognizer (PP-OCRv4)", "ORT, per tensor", "words", 0.9825, 0.0, 0.0, 0.615),
    ("text recognizer (PP-OCRv4)", "ORT, per channel", "words", 0.9825, 0.71, 0.71, 0.2668),
    ("sentence encoder (MiniLM)", "fewbit", "recall", 0.97, 0.9733, 0.99, 0.1112),
    ("sentence encoder (MiniLM)", "NNCF", "recall", 0.97, 0.97, 0.9667, 0.79),
    ("sentence encoder (MiniLM)", "NNCF, TRANSFORMER", "recall", 0.97, 0.97, 0.9933, 0.0846),
    ("sentence encoder (MiniLM)", "ORT, per tensor", "recall", 0.97, 0.9433, 0.9567, 0.8906),
    ("sentence encoder (MiniLM)", "ORT, per channel", "recall", 0.97, 0.9467, 0.96, 0.849),
    ("speech quality (DNSMOS)", "fewbit", "ordering", 0.9467, 0.9482, 0.997, 0.0069),
    ("speech quality (DNSMOS)", "NNCF", "ordering", 0.9467, 0.825, 0.6743, 0.5025),
    ("speech quality (DNSMOS)", "ORT, per tensor", "ordering", 0.9467, 0.6613, 0.6578, 0.5346),
    ("speech quality (DNSMOS)", "ORT, per channel", "ordering", 0.9467, 0.6804, 0.6638, 0.5266),
    ("table classifier (MobileNetV3 type)", "fewbit", "accuracy", 0.9975, 0.995, 0.9975, 0.0864),
    ("table classifier (MobileNetV3 type)", "NNCF", "accuracy", 0.9975, 0.9775, 0.98, 0.2149),
    ("table classifier (MobileNetV3 type)", "ORT, per tensor", "accuracy", 0.9975, 0.9375, 0.94, 0.4538),
    ("table classifier (MobileNetV3 type)", "ORT, per channel", "accuracy", 0.9975, 0.97, 0.9725, 0.3454),
    ("text detector (PP-OCRv4)", "fewbit", None, None, None, 0.9705, 0.0944),
    ("text detector (PP-OCRv4)", "NNCF", None, None, None, 0.9289, 0.2137),
    ("text detector (PP-OCRv4)", "ORT, per tensor", None, None, None, 0.7863, 0.4389),
    ("text detector (PP-OCRv4)", "ORT, per channel", None, None, None, 0.8558, 0.3416),
    ("voice activity (Silero)", "fewbit", "accuracy", 0.9836, 0.9849, 0.9978, 0.0535),
    ("voice activity (Silero)", "NNCF", "accuracy", 0.9836, 0.9574, 0.9335, 0.5876),
    ("voice activity (Silero)", "ORT, per tensor", "accuracy", 0.9836, 0.4454, 0.4424, 1.8549),
    ("voice activity (Silero)", "ORT, per channel", "accuracy", 0.9836, 0.9414, 0.9226, 0.6516),
    ("voice activity (Silero)", "ORT, percentile", "accuracy", 0.9836, 0.9447, 0.9115, 0.6612),
    ("voice activity (Silero)", "ORT, entropy", "accuracy", 0.9836, 0.9414, 0.9226, 0.6516),
]  # fmt: skip

FLOAT_PERPLEXITIES = (19.98, 14.07)
# SmolLM2-135M: number format, tool, perplexities on two texts.
LANGUAGE = [
    ("int4 g64", "fewbit", 22.95, 18.94), ("int4 g64", "auto-round", 23.45, 19.41),
    ("int4 g32", "fewbit", 22.29, 17.68),
    ("int4 g64", "llm-compressor", 31.16, 32.55), ("int3 g64", "hqq", 15140.57, 11676.12),
    ("int2 g64", "fewbit", 81.63, 395.05), ("int2 g64", "llm-compressor", 580504.96, 1485129.11),
    ("nvfp4", "fewbit", 21.24, 16.15), ("w8a8", "fewbit", 20.40, 14.45), ("fp8", "fewbit", 20.28, 14.39),
]  # fmt: skip

# all-MiniLM-L6-v2: preset, mean cosine similarity, recall@1 (0.9725 in float).
EMBEDDINGS = [
    ("w8a8", 0.99466, 0.9725), ("w8a16", 0.99962, 0.9725), ("w4a16", 0.96212, 0.9675),
    ("w4a8_dynamic", 0.96055, 0.9625),
    ("w3a16", 0.88532, 0.9650), ("w2a16", 0.69806, 0.9325), ("mxfp4", 0.93992, 0.9675), ("nvfp4", 0.97303, 0.9750),
]  # fmt: skip
