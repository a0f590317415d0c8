import io.delta.kernel.Scan;
import io.delta.kernel.Snapshot;
import io.delta.kernel.Table;
import io.delta.kernel.data.ColumnVector;
import io.delta.kernel.data.ColumnarBatch;
import io.delta.kernel.data.FilteredColumnarBatch;
import io.delta.kernel.data.Row;
import io.delta.kernel.defaults.engine.DefaultEngine;
import io.delta.kernel.engine.Engine;
import io.delta.kernel.internal.InternalScanFileUtils;
import io.delta.kernel.internal.data.ScanStateRow;
import io.delta.kernel.internal.util.Utils;
import io.delta.kernel.types.StructType;
import io.delta.kernel.utils.CloseableIterator;
import io.delta.kernel.utils.FileStatus;
import java.util.Optional;
import java.util.Random;
import org.apache.hadoop.conf.Configuration;

/**
 * Reads a Delta table again and again at random moments, with Delta's own library for Java, until its input ends;
 * prints the version, its rows, and the sum of a column, each time.
 */
public class DeltaRows {
  public static void main(String[] arguments) throws Exception {
    Engine engine = DefaultEngine.create(new Configuration());
    Random noise = new Random(Long.parseLong(arguments[2]));
    boolean over = false;
    while (!over) {
      over = System.in.available() > 0; // one more time, so that the last version is read too
      System.out.println(read(engine, arguments[0], arguments[1]));
      System.out.flush();
      Thread.sleep(noise.nextInt(30));
    }
  }

  private static String read(Engine engine, String path, String column) throws Exception {
    Snapshot snapshot = Table.forPath(engine, path).getLatestSnapshot(engine);
    Scan scan = snapshot.getScanBuilder().build();
    Row state = scan.getScanState(engine);
    StructType physical = ScanStateRow.getPhysicalDataReadSchema(state);
    long rows = 0, sum = 0;
    try (CloseableIterator<FilteredColumnarBatch> listed = scan.getScanFiles(engine)) {
      while (listed.hasNext()) {
        try (CloseableIterator<Row> files = listed.next().getRows()) {
          while (files.hasNext()) {
            Row file = files.next();
            FileStatus status = InternalScanFileUtils.getAddFileStatus(file);
            CloseableIterator<ColumnarBatch> data =
                engine
                    .getParquetHandler()
                    .readParquetFiles(Utils.singletonCloseableIterator(status), physical, Optional.empty())
                    .map(part -> part.getData());
            try (CloseableIterator<FilteredColumnarBatch> live =
                Scan.transformPhysicalData(engine, state, file, data)) {
              while (live.hasNext()) {
                FilteredColumnarBatch batch = live.next();
                ColumnarBatch all = batch.getData();
                ColumnVector values = all.getColumnVector(all.getSchema().indexOf(column));
                Optional<ColumnVector> selected = batch.getSelectionVector();
                for (int row = 0; row < all.getSize(); row++) {
                  if (!selected.isPresent() || selected.get().getBoolean(row)) {
                    rows++;
                    sum += values.getLong(row);
                  }
                }
              }
            }
          }
        }
      }
    }
    return snapshot.getVersion() + " " + rows + " " + sum;
  }
}
