# SPDX-License-Identifier: Apache-2.0
"""Every issue type of images with boxes: what YOLO, COCO and Pascal VOC share, then those of each."""

from __future__ import annotations

from dataclasses import replace

from fewbit.data.images import inspect as image_inspection
from fewbit.data.images import masks, shapes
from fewbit.data.images.decode import IMAGE_ISSUES
from fewbit.data.images.file_source import IMAGE_SKIPPED, NO_IMAGES
from fewbit.data.rows.labels import LABELS_ALIKE as LABELS_ALIKE
from fewbit.data.types import Action, IssueType, Severity

DUPLICATE_ACROSS_SPLITS = replace(image_inspection.DUPLICATE_ACROSS_SPLITS, actions=("drop", "raise"))
ERROR, WARNING, NOTE = Severity.ERROR, Severity.WARNING, Severity.NOTE

# fmt: off
IMAGE_MISSING = IssueType(
    "image-missing", ERROR, "image that is not there", "restore the image or delete its entry", "raise", ("drop",),
    "leaves the entry out")
IMAGE_SIZE = IssueType(
    "image-size-mismatch", ERROR, "image of another size than its annotation says",
    "annotate the image as it is now, or restore it", "raise", ("drop", "keep"), "leaves the image out")
LABEL_UNREADABLE = IssueType(
    "label-unreadable", ERROR, "label or annotation file that cannot be read", "restore it, or write it again", "raise",
    ("drop",), "leaves the image out")
NAMES_CONFLICT = IssueType(
    "names-conflict", WARNING, "files that name the classes differently", "correct the wrong one",
    fix="writes the names that are used")
OBJECTS_LOST = IssueType(
    "objects-lost", WARNING, "image whose objects were all unusable",
    "correct its labels; without them it would look like background", "drop", ("raise", "keep"), "leaves the image out")
CLASS_BEYOND = IssueType(
    "class-beyond", ERROR, "object of a class without a name", "correct the class, or add it to the names", "raise",
    ("drop", "keep"), "leaves the object out")
BOX_INVALID = IssueType(
    "box-invalid", ERROR, "box that is not four numbers", "correct or delete it", "raise", ("drop",),
    "leaves the object out")
BOX_EMPTY = IssueType("box-empty", WARNING, "box without area", "delete it", "drop", ("raise",), "leaves the box out")
OUT_OF_RANGE = IssueType(
    "out-of-range", WARNING, "box or polygon that reaches beyond the image", "clip it at the border", "repair",
    ("raise", "drop", "keep"), "clips it at the border")
OUT_OF_RANGE_SLIGHTLY = IssueType(
    "out-of-range-slightly", NOTE, "box or polygon that reaches beyond the image by a thousandth or less",
    "nothing: readers clip it", "repair", ("raise", "drop", "keep"), "clips it at the border")
OUTSIDE_IMAGE = IssueType(
    "outside-image", WARNING, "box or polygon outside the image", "correct or delete it", "drop", ("raise",),
    "leaves it out")
POLYGON_EMPTY = IssueType(
    "polygon-empty", WARNING, "polygon without area", "delete it", "drop", ("raise",), "leaves the polygon out",
    aliases=("polygon-repeats",))
POLYGON_CROSSES = IssueType(
    "polygon-crosses", WARNING, "polygon that crosses itself",
    "draw it again: what lies inside twice counts as outside", "keep", ("raise", "drop"), aliases=("polygon-tangled",))
POLYGON_TOO_LONG = IssueType(
    "polygon-too-long", ERROR, f"polygon of more than {shapes.MOST_POINTS:,} corners", "draw it with fewer corners",
    "raise", ("drop",), "leaves the polygon out")
OBJECT_DUPLICATE = IssueType(
    "row-duplicate", WARNING, "object given twice", "delete one", "drop", ("raise", "keep"),
    "leaves the second one out")
MASKS_TOO_LARGE = IssueType(
    "masks-too-large", ERROR, "image whose masks would fill the memory",
    "resize the image, or read boxes only: {task=object-detection}", "raise", ("drop",), "leaves the image out")
SHARED = (
    *IMAGE_ISSUES, DUPLICATE_ACROSS_SPLITS, NO_IMAGES, IMAGE_MISSING, LABEL_UNREADABLE, NAMES_CONFLICT,
    LABELS_ALIKE, OBJECTS_LOST, CLASS_BEYOND, BOX_EMPTY, OUT_OF_RANGE, OUT_OF_RANGE_SLIGHTLY, OUTSIDE_IMAGE,
    POLYGON_EMPTY, POLYGON_CROSSES,
    POLYGON_TOO_LONG, OBJECT_DUPLICATE, MASKS_TOO_LARGE)

# YOLO: the data.yaml
YAML_INVALID = IssueType(
    "yaml-invalid", ERROR, "data.yaml that cannot be read",
    "it is a short YAML file in UTF-8 with `train:`, `val:` and `names:`", "raise", ("keep",), "writes a new data.yaml")
YAML_COUNT = IssueType(
    "yaml-nc", ERROR, "`nc` that is not the number of names", "correct or delete `nc`", "raise", ("keep",),
    "writes a data.yaml without `nc`")
YAML_DOWNLOAD = IssueType(
    "yaml-download", NOTE, "data.yaml that asks to download or run something", "nothing: it is never done",
    fix="writes a data.yaml without it")
YAML_TAG = IssueType(
    "yaml-tag", WARNING, "data.yaml with a tag that asks to construct an object",
    "delete the tag: the value is read as text", "keep", ("raise",), "writes a data.yaml without it")
YAML_KEYPOINTS = IssueType(
    "yaml-keypoints", ERROR, "keypoint dataset", "only boxes and polygons are read", "raise", ("keep",))
NAMES_INVALID = IssueType(
    "names-invalid", ERROR, "class names that are not a list or have gaps",
    "write `names` as a list, or as 0: first, 1: second, …; in a classes.txt one name per line", "raise", ("keep",),
    "calls classes without a name class_N")

# YOLO: where files are
SPLIT_TOO_WIDE = IssueType(
    "split-too-wide", ERROR, "split that is a system folder, above the dataset or too large",
    "name the folder of the images", "raise", ("drop",), "leaves the split out", aliases=("folder-too-large",))
SPLIT_MISSING = IssueType(
    "split-missing", ERROR, "folder or list file of the data.yaml that is not there",
    "correct the path: it is relative to `path:`, and that to the data.yaml", "raise", ("drop",),
    "leaves the split out")
SPLITS_ALIKE = IssueType(
    "splits-alike", NOTE, "two splits with the same images", "results on one say nothing about the other")
PATH_GUESSED = IssueType(
    "path-guessed", WARNING, "path of the data.yaml that leads nowhere, while a similar one exists", "correct the path",
    "keep", ("raise",), "writes a data.yaml with the right path")
PATH_OUTSIDE = IssueType(
    "path-outside", NOTE, "path that is absolute or leads out of the dataset's folder",
    "copy its files if the dataset is to be moved", fix="copies the files into the dataset")
ROOT_ABOVE = IssueType(
    "root-above", WARNING, "folder of images instead of the dataset's folder",
    "give the dataset's folder: its other splits and its class names belong to it",
    fix="copies the images and their labels")
YAML_AMBIGUOUS = IssueType(
    "yaml-ambiguous", WARNING, "several YAML files that describe the dataset",
    "give the right one instead of the folder", fix="writes one data.yaml")
IMAGE_UNASSIGNED = IssueType(
    "image-unassigned", WARNING, "images next to the folders of the splits", "move them into a split",
    fix="leaves them out")
IMAGE_TWICE = IssueType(
    "image-twice", WARNING, "image named twice in a split", "delete one of the lines", "drop", ("raise",),
    "leaves the second out")
LIST_INVALID = IssueType(
    "list-invalid", ERROR, "line of a list file that is not the path of an image",
    "write one image path per line, in UTF-8", "raise", ("drop",), "leaves the line out")
LABEL_MISSING = IssueType(
    "label-missing", NOTE, "image without a label file: background", "nothing, if nothing is on it")
LABELS_MOSTLY_MISSING = IssueType(
    "labels-mostly-missing", WARNING, "split in which most images have no label file",
    "check whether label files were lost")
LABELS_NONE = IssueType(
    "labels-none", ERROR, "dataset without label files", "put the label files where they are looked for", "raise",
    ("keep",))
LABEL_ORPHAN = IssueType(
    "label-orphan", WARNING, "label file without an image", "restore the image or delete the label file",
    fix="leaves the label file out")
NAMES_UNKNOWN = IssueType(
    "names-unknown", NOTE, "classes without names, so class numbers cannot be checked",
    "write a data.yaml with `names:`, or a classes.txt with one name per line")

# YOLO: label files
LABEL_UTF16 = IssueType(
    "label-utf16", WARNING, "label file in UTF-16", "save it as UTF-8", "repair", ("raise",), "writes it as UTF-8")
ROW_NOT_FINITE = IssueType(
    "row-not-finite", WARNING, "label row with NaN, infinity or an absurd value", "correct or delete the row", "drop",
    ("raise",), "leaves the row out")
PIXELS_UNFIT = IssueType(
    "pixels-unfit", WARNING, "label row in pixels that does not fit on its image",
    "say how boxes are written: {data_option=pixels=corners} or {data_option=pixels=top-left}", "drop", ("raise",),
    "leaves the row out")
PIXELS_AMBIGUOUS = IssueType(
    "pixels-ambiguous", ERROR, "label rows in pixels that could be read in several ways",
    "say how boxes are written: {data_option=pixels=centre}, {data_option=pixels=corners} or "
    "{data_option=pixels=top-left}", "raise", ("drop",), "leaves the row out")
LABEL_EMPTY = IssueType(
    "label-empty", NOTE, "image with an empty label file: background", "nothing, if nothing is on it")
LABELS_ALL_EMPTY = IssueType(
    "labels-all-empty", WARNING, "no label file with a usable row", "check whether labels were lost")
CLASSES_FROM_ONE = IssueType(
    "classes-from-one", WARNING, "no object of class 0: classes may be counted from 1",
    "{data_option=one_based=true} if they are")
MAYBE_ORIENTED = IssueType(
    "maybe-oriented", WARNING, "only polygons of four corners: they may be oriented boxes",
    "{data_option=oriented=true} for oriented boxes, {data_option=oriented=false} for polygons")
NO_POLYGONS = IssueType(
    "no-polygons", WARNING, "segmentation of a dataset that has only boxes", "masks will be filled rectangles")
# fmt: on


def _row_issue(code: str, meaning: str, hint: str, repair: str = "", alias: str = "") -> IssueType:
    actions: tuple[Action, ...] = ("repair", "drop") if repair else ("drop",)
    aliases = (alias,) if alias else ()
    return IssueType(code, ERROR, meaning, hint, "raise", actions, repair or "leaves the row out", aliases=aliases)


# fmt: off
ROW_COUNT = _row_issue(
    "row-count", "label row that is neither a box nor a polygon",
    "5 values are a box (class x y width height), 7, 9, … a polygon (class x1 y1 x2 y2 …)")
ROW_CONFIDENCE = _row_issue(
    "row-confidence", "label row with a sixth value that looks like a confidence", "delete the sixth value",
    "leaves the sixth value out")
ROW_COMMAS = _row_issue(
    "row-commas", "label row with commas", "separate the values by spaces", "separates the values by spaces")
ROW_NUMBER = _row_issue(
    "row-number", "label value that is not a number", "correct or delete the row", alias="row-encoding")
ROW_CLASS = _row_issue(
    "row-class", "class that is not an integer from 0", "write the position of the class in `names`",
    "writes the number of a class given by its name, leaves other rows out", alias="class-by-name")
PIXEL_COORDINATES = _row_issue(
    "pixel-coordinates", "label row in pixels", "divide x and width by the image's width, y and height by its height",
    "divides by the size of the image")
YOLO = (
    *SHARED, YAML_INVALID, YAML_COUNT, YAML_DOWNLOAD, YAML_TAG, YAML_KEYPOINTS, NAMES_INVALID, SPLIT_MISSING,
    SPLIT_TOO_WIDE, SPLITS_ALIKE, PATH_GUESSED, PATH_OUTSIDE, ROOT_ABOVE, YAML_AMBIGUOUS, IMAGE_UNASSIGNED, IMAGE_TWICE,
    IMAGE_SKIPPED, masks.STEM_TWICE, LIST_INVALID, LABEL_MISSING, LABELS_MOSTLY_MISSING, LABELS_NONE, LABEL_ORPHAN,
    NAMES_UNKNOWN, LABEL_UTF16, ROW_COUNT, ROW_CONFIDENCE, ROW_COMMAS, ROW_NUMBER, ROW_CLASS, PIXEL_COORDINATES,
    ROW_NOT_FINITE, PIXELS_UNFIT, PIXELS_AMBIGUOUS, LABEL_EMPTY, LABELS_ALL_EMPTY, CLASSES_FROM_ONE, MAYBE_ORIENTED,
    NO_POLYGONS)

# COCO
CATEGORIES_MISSING = IssueType(
    "categories-missing", ERROR, "annotation file without categories",
    'write "categories": [{"id": 1, "name": "cat"}, …]', "raise", ("keep",))
IMAGE_INVALID = IssueType(
    "image-entry-invalid", ERROR, "image entry without a file name or a unique id",
    'an image is {"id": 1, "file_name": "a.jpg", "width": 640, "height": 480}', "raise", ("drop",),
    "leaves the entry out")
ANNOTATION_ORPHAN = IssueType(
    "annotation-orphan", ERROR, "annotation of an unknown image", "correct or delete it", "raise", ("drop",),
    "leaves the annotation out")
CROWD_SKIPPED = IssueType(
    "crowd-skipped", NOTE, "crowd regions that are left out", "{data_option=crowd=true} reads them as objects")
SEGMENTATION_INVALID = IssueType(
    "segmentation-invalid", ERROR, "segmentation that is neither polygons nor RLE", "correct or delete it", "raise",
    ("drop",), "leaves the annotation out")
SEGMENTATION_UNUSABLE = IssueType(
    "segmentation-unusable", WARNING, "segmentation that is neither polygons nor RLE, of an object whose box is read",
    "correct it, if the data is for segmentation, too", fix="leaves the segmentation out")
ANNOTATION_TWICE = IssueType(
    "annotation-id-twice", WARNING, "annotation with the id of an earlier one, of which other tools read only one",
    "number the annotations", fix="gives it another id")
COCO = (
    *SHARED, IMAGE_SIZE, BOX_INVALID, CATEGORIES_MISSING, IMAGE_INVALID, ANNOTATION_ORPHAN, ANNOTATION_TWICE,
    SEGMENTATION_INVALID, SEGMENTATION_UNUSABLE, CROWD_SKIPPED)

# Pascal VOC
ANNOTATION_MISSING = IssueType(
    "annotation-missing", WARNING, "image without an annotation file, which is not read",
    "annotate it, or {on_error=keep} to read it as background", "drop", ("keep", "raise"))
NOT_LISTED = IssueType(
    "annotation-not-listed", NOTE, "annotated images in no list of ImageSets, which are not read",
    "add them to a list of ImageSets/Main")
FILENAME_DIFFERS = IssueType(
    "filename-differs", NOTE, "annotation file whose <filename> is not the image of its own name, which is read",
    "check that it belongs to this image")
VOC = (
    *SHARED, IMAGE_SIZE, BOX_INVALID, ANNOTATION_MISSING, NOT_LISTED,
    FILENAME_DIFFERS, masks.MASK_MISSING, masks.MASK_SIZE,
    masks.MASK_VALUE, masks.MASK_COLORS)
# fmt: on
