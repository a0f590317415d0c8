"""The messages of Arrow Flight SQL, with the field numbers of the published protocol, as protobuf classes."""

from typing import Any

from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, message_factory

FLIGHT_PORT = 9465
CALL = "windrow.call"
"""The action of our own client, whose body is JSON."""
COUNTED_END = "counted"
"""The option ``end`` of an upload whose last message is metadata with the number of its rows: without it, or with
another number, nothing is appended."""
_PACKAGE = "arrow.flight.protocol.sql"
_KINDS = descriptor_pb2.FieldDescriptorProto
_TYPES = {
    "string": _KINDS.TYPE_STRING,
    "bytes": _KINDS.TYPE_BYTES,
    "bool": _KINDS.TYPE_BOOL,
    "int32": _KINDS.TYPE_INT32,
    "int64": _KINDS.TYPE_INT64,
    "uint32": _KINDS.TYPE_UINT32,
}
_MESSAGES: dict[str, str] = {
    "CommandGetSqlInfo": "repeated uint32 info 1",
    "CommandGetXdbcTypeInfo": "optional int32 data_type 1",
    "CommandGetCatalogs": "",
    "CommandGetDbSchemas": "optional string catalog 1; optional string db_schema_filter_pattern 2",
    "CommandGetTables": (
        "optional string catalog 1; optional string db_schema_filter_pattern 2; "
        "optional string table_name_filter_pattern 3; repeated string table_types 4; single bool include_schema 5"
    ),
    "CommandGetTableTypes": "",
    "CommandGetPrimaryKeys": "optional string catalog 1; optional string db_schema 2; single string table 3",
    "CommandGetExportedKeys": "optional string catalog 1; optional string db_schema 2; single string table 3",
    "CommandGetImportedKeys": "optional string catalog 1; optional string db_schema 2; single string table 3",
    "CommandGetCrossReference": (
        "optional string pk_catalog 1; optional string pk_db_schema 2; single string pk_table 3; "
        "optional string fk_catalog 4; optional string fk_db_schema 5; single string fk_table 6"
    ),
    "CommandStatementQuery": "single string query 1; optional bytes transaction_id 2",
    "CommandStatementUpdate": "single string query 1; optional bytes transaction_id 2",
    "TicketStatementQuery": "single bytes statement_handle 1",
    "CommandPreparedStatementQuery": "single bytes prepared_statement_handle 1",
    "CommandPreparedStatementUpdate": "single bytes prepared_statement_handle 1",
    "ActionCreatePreparedStatementRequest": "single string query 1; optional bytes transaction_id 2",
    "ActionCreatePreparedStatementResult": (
        "single bytes prepared_statement_handle 1; single bytes dataset_schema 2; single bytes parameter_schema 3"
    ),
    "ActionClosePreparedStatementRequest": "single bytes prepared_statement_handle 1",
    "ActionCancelQueryRequest": "single bytes info 1",
    "ActionCancelQueryResult": "single int32 result 1",
    "CancelFlightInfoRequest": "single bytes info 1",
    "CancelFlightInfoResult": "single int32 status 1",
    "DoPutUpdateResult": "single int64 record_count 1",
    "DoPutPreparedStatementResult": "optional bytes prepared_statement_handle 1",
    "TableDefinitionOptions": "single int32 if_not_exist 1; single int32 if_exists 2",
    "CommandStatementIngest": (
        "single TableDefinitionOptions table_definition_options 1; single string table 2; optional string schema 3; "
        "optional string catalog 4; single bool temporary 5; optional bytes transaction_id 6"
    ),
}
"""Each message as ``label type name number``; enumerations are read as the integers that they are on the wire."""


def _build() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="windrow/flight_sql.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for text in filter(None, fields.split("; ")):
            label, kind, field_name, number = text.split()
            field = message.field.add(name=field_name, number=int(number))
            field.label = _KINDS.LABEL_REPEATED if label == "repeated" else _KINDS.LABEL_OPTIONAL
            if kind in _TYPES:
                field.type = _TYPES[kind]
            else:
                field.type, field.type_name = _KINDS.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
            if label == "optional":
                field.proto3_optional, field.oneof_index = True, len(message.oneof_decl)
                message.oneof_decl.add(name=f"_{field_name}")
        if name == "CommandStatementIngest":
            _add_options(message)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in _MESSAGES
    }


def _add_options(message: Any) -> None:
    """The map of an ingest's options, which protobuf writes as a repeated entry."""
    entry = message.nested_type.add(name="OptionsEntry")
    entry.options.map_entry = True
    for number, name in ((1, "key"), (2, "value")):
        entry.field.add(name=name, number=number, type=_KINDS.TYPE_STRING, label=_KINDS.LABEL_OPTIONAL)
    message.field.add(
        name="options",
        number=1000,
        label=_KINDS.LABEL_REPEATED,
        type=_KINDS.TYPE_MESSAGE,
        type_name=f".{_PACKAGE}.CommandStatementIngest.OptionsEntry",
    )


CLASSES = _build()


def unpack(content: bytes) -> tuple[str, Any] | None:
    """Name and message of a command or an action's body, None if it is none of Flight SQL's."""
    wrapped = any_pb2.Any()
    try:
        wrapped.ParseFromString(content)
        name = wrapped.type_url.rpartition(".")[2]
        if not wrapped.type_url.endswith(f"/{_PACKAGE}.{name}") or name not in CLASSES:
            return None
        message = CLASSES[name]()
        message.ParseFromString(wrapped.value)
    except Exception:  # noqa: BLE001 - protobuf's errors have no common base that is public
        return None
    return name, message


def pack(name: str, **fields: Any) -> bytes:
    """A message, wrapped as Flight SQL wants it."""
    wrapped = any_pb2.Any(
        type_url=f"type.googleapis.com/{_PACKAGE}.{name}", value=CLASSES[name](**fields).SerializeToString()
    )
    content: bytes = wrapped.SerializeToString()
    return content


def plain(name: str, **fields: Any) -> bytes:
    """A message that is not wrapped: results of uploads."""
    content: bytes = CLASSES[name](**fields).SerializeToString()
    return content
